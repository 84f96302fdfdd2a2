"""Where callers' paths lead: to the directories for callers on the volume, and nowhere else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as search
from support.volume.callers_paths import PATHS, lay_links

from worker.errors import InvalidInput, VolumeError
from worker.settings import Settings
from worker.settings.mistakes import SettingsError
from worker.volume import Volume

# Where each kind of path leads, by a method of the volume.
Leads = Callable[[Volume, str], Path]
BOTH_WAYS = pytest.mark.parametrize("leads", [Volume.input, Volume.written])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "volume"
    for name in ("inbox/deep", "uploads", "out", "models/my-model", "worker", ".cache"):
        (root / name).mkdir(parents=True)
    (tmp_path / "secret").write_text("out of the volume")
    return root


def volume_of(**environ: str) -> Volume:
    return Volume.of(Settings.from_env({"MODEL_NAME": "m", **environ}))


@pytest.mark.parametrize(
    "path",
    [
        *("inbox/a.jsonl", "./inbox//a.jsonl", "out/../inbox/a.jsonl", "s3://bucket/inbox/a.jsonl"),
        *("{}/inbox/a.jsonl", "{}/../mounted/inbox/a.jsonl", "out/link/a.jsonl"),
    ],
)
def test_a_path_of_any_form_leads_to_the_file(root: Path, path: str) -> None:
    (root / "out" / "link").symlink_to(root / "inbox")
    mounted = root.parent / "mounted"
    mounted.symlink_to(root)
    for way in (root, mounted):
        volume = volume_of(FILES_PATH=str(way), RUNPOD_VOLUME_ID="bucket")
        assert volume.input(path.format(root)) == root / "inbox" / "a.jsonl"
    with pytest.raises(InvalidInput, match="no other bucket"):
        Volume(root).input("s3://bucket/inbox/a.jsonl")


def test_callers_read_in_three_directories_and_write_in_one(root: Path) -> None:
    volume = Volume(root)
    for path in ("inbox/a", "inbox/deep/a", "uploads/a", "out/a"):
        assert volume.input(path) == root / path
    assert volume.written("out/new/a") == root / "out" / "new" / "a"
    for path in ("inbox/a", "uploads/a"):
        with pytest.raises(InvalidInput, match=r"below out/ \(FILES_OUTPUT_PATH\)"):
            volume.written(path)


def test_the_operator_names_other_directories(root: Path) -> None:
    names = {"FILES_INPUT_PATHS": "models/rows, data", "FILES_OUTPUT_PATH": "data/results/"}
    volume = volume_of(FILES_PATH=str(root), **names)
    assert volume.input("models/rows/a") == root / "models" / "rows" / "a"
    assert volume.written("data/results/a") == root / "data" / "results" / "a"
    for path in ("inbox/a", "out/a", "models/a"):
        with pytest.raises(InvalidInput, match=r"below models/rows/, data/, data/results/ "):
            volume.input(path)


REFUSED = {
    "leads out of the volume": [
        *("../secret", "out/../../secret", "/etc/passwd", "s3://bucket/../secret", ".", "/", "{}"),
        *("s3://bucket//etc/passwd", "out/around", "out/around/secret", "out/file"),
        "../volume2/out/a",
    ],
    "callers' paths are below": [
        *("out", "out/", "out/.", "OUT/a", "outer/a", "secret-of-operator/.env", ".cache/token"),
        *("models/my-model/chat_template.jinja", "out/../models/my-model/config.json"),
        *("out/models/my-model/config.json", "adapters/a/adapter_config.json", "compile-cache"),
        *("worker/files/file-x/content", "huggingface-cache/token", "s3://bucket/worker/files"),
    ],
    "begins with a dot": ["out/.hidden", "out/.git/config", "out/a/.b/c"],
    "names a file": ["", "s3://bucket/", "s3://bucket", "a\0b"],
    "leads to nothing": ["circle", "circle/a", "a" * 300, "a/" * 3000, "a\ud83d"],
    "no other bucket": ["s3://other/out/a"],
}


@BOTH_WAYS
@pytest.mark.parametrize(("why", "path"), [(why, path) for why in REFUSED for path in REFUSED[why]])
def test_a_path_that_leads_elsewhere_is_refused_by_its_reason(
    root: Path, leads: Leads, path: str, why: str
) -> None:
    (root / "out" / "around").symlink_to(root.parent)
    (root / "out" / "file").symlink_to(root.parent / "secret")
    (root / "out" / "models").symlink_to(root / "models")
    (root / "circle").symlink_to(root / "circle")
    with pytest.raises(InvalidInput, match=why):
        leads(Volume(root, "bucket"), path.format(root))


@BOTH_WAYS
@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HF_HOME": "{}/out/hf"}, "out/hf"),
        # In its place, a file keeps the cache from being made.
        ({"HF_HUB_CACHE": "{}/out/a/hub"}, "out/a"),
        ({"HF_HOME": "$VOLUME/out/hf", "VOLUME": "{}"}, "out/hf/token"),
        ({"DOWNLOAD_DIR": "{}/out/models/"}, "out/models/x"),
        ({"MODEL_NAME": "{}/out/my model"}, "out/my model/chat_template.jinja"),
        ({"TOKENIZER": "{}/out/model.gguf"}, "out/model.gguf"),
        ({"MODEL_NAME": "out/model"}, "out/model/config.json"),
        ({"LORA_MODULES": "sql={}/out/sql,b=org/b"}, "out/sql/adapter_config.json"),
        ({"LORA_MODULES": '[{"path": "{}/out/a b", "name": "sql"}]'}, "out/a b/x"),
        ({"VLLM_EXTRA_ARGS": "--download-dir={}/out/dir --seed 1"}, "out/dir/x"),
        ({"BASE_PATH": "{}/out/base"}, "out/base/adapters/a/adapter_config.json"),
        ({"MODEL_NAME": "{}/linked"}, "out/real/config.json"),
        ({"ANYTHING": "{}/out/anything"}, "out/anything/x"),
        ({"FILES_OUTPUT_PATH": "worker"}, "worker/files/x"),
        ({"FILES_OUTPUT_PATH": "adapters"}, "adapters/a/adapter_config.json"),
    ],
)
def test_what_another_setting_names_is_the_operators_wherever_it_lies(
    root: Path, monkeypatch: pytest.MonkeyPatch, leads: Leads, environ: dict[str, str], path: str
) -> None:
    for name in ("out/real", "out/my model", "out/model"):
        (root / name).mkdir()
    (root / "linked").symlink_to(root / "out" / "real")
    (root / "mounted").symlink_to(root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("VOLUME", str(root))
    environ = {name: value.replace("{}", str(root)) for name, value in environ.items()}
    for mounted in (root, root / "mounted"):
        volume = volume_of(**{"FILES_PATH": str(mounted), **environ})
        with pytest.raises(InvalidInput, match="the operator's own"):
            leads(volume, path)


def test_a_setting_that_names_the_volume_itself_makes_nothing_private(root: Path) -> None:
    around = {name: str(root) for name in ("BASE_PATH", "HF_HUB_CACHE", "HOME", "PWD")}
    volume = volume_of(FILES_PATH=str(root), DATA=str(root.parent), **around)
    assert volume.input("out/a") == root / "out" / "a"


@pytest.mark.parametrize(
    "path", ["/out", "../out", "a/../out", ".out", "a/.b", "a//b", "a, /b", '["a", "/b"]']
)
def test_a_directory_for_callers_lies_below_files_path(path: str) -> None:
    with pytest.raises(SettingsError, match="FILES_INPUT_PATHS"):
        volume_of(FILES_INPUT_PATHS=path)


@pytest.mark.parametrize("target", [".", "..", "../elsewhere"])
def test_a_directory_for_callers_that_links_to_the_root_or_out_of_it_serves_no_path(
    root: Path, target: str
) -> None:
    (root / "out").rmdir()
    (root / "out").symlink_to(root / target)
    for path in ("out/secret", "out/models/my-model/a", "out/volume/inbox/a"):
        with pytest.raises(InvalidInput, match=r"out of the volume|paths are below out/"):
            Volume(root).written(path)


@BOTH_WAYS
@search(
    max_examples=300, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(path=PATHS)
def test_whatever_a_path_holds_it_is_refused_or_leads_to_a_directory_for_callers(
    root: Path, leads: Leads, path: str
) -> None:
    lay_links(root)
    volume = volume_of(FILES_PATH=str(root), RUNPOD_VOLUME_ID="bucket", HF_HOME=f"{root}/out/hf")
    try:
        place = leads(volume, path.replace("{}", str(root)))
    except InvalidInput:
        return
    top, *below = Path(os.path.realpath(place)).relative_to(root).parts
    assert top in (["out"] if leads is Volume.written else ["inbox", "uploads", "out"])
    assert below
    assert not any(part.startswith(".") for part in below)
    assert not (top == "out" and below[0] == "hf")


def test_without_a_volume_nothing_is_kept_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    volume = volume_of(BASE_PATH=str(tmp_path / "no"))
    for act in (volume.directory, volume.input, volume.written):
        with pytest.raises(VolumeError, match="FILES_PATH") as refused:
            act("files")
        assert str(tmp_path) not in refused.value.message
    # A directory that the operator names need not exist yet.
    volume = volume_of(FILES_PATH=str(tmp_path / "new"))
    assert volume.directory("files") == tmp_path / "new" / "worker" / "files"
