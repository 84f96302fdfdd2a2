"""Callers' paths: they lead only to the directories for callers on the volume."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as search
from support.tables.callers_paths import PATHS, make_links

from worker.errors import InvalidInput, VolumeError
from worker.settings import Settings
from worker.settings.mistakes import SettingsError
from worker.volume import Volume

# A method of ``Volume`` that resolves callers' paths.
Resolve = Callable[[Volume, str], Path]
FOR_BOTH_KINDS = pytest.mark.parametrize("resolve", [Volume.input_path, Volume.output_path])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "volume"
    for name in ("inbox/deep", "uploads", "out", "models/my-model", "worker", ".cache"):
        (root / name).mkdir(parents=True)
    (tmp_path / "secret").write_text("out of the volume")
    return root


def volume_of(**environ: str) -> Volume:
    return Volume.from_settings(Settings.from_env({"MODEL_NAME": "m", **environ}))


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
    for base in (root, mounted):
        volume = volume_of(FILES_PATH=str(base), RUNPOD_VOLUME_ID="bucket")
        assert volume.input_path(path.format(root)) == root / "inbox" / "a.jsonl"
    with pytest.raises(InvalidInput, match="no other bucket"):
        Volume(root).input_path("s3://bucket/inbox/a.jsonl")


@pytest.mark.parametrize("name", ["a b", "日本\u3000語.json", "e\u0301", "👩\u200d💻.txt", "ภาษา"])
def test_a_name_in_any_language_is_accepted(root: Path, name: str) -> None:
    assert Volume(root).output_path(f"out/{name}") == root / "out" / name


def test_callers_read_from_three_directories_and_write_to_one(root: Path) -> None:
    volume = Volume(root)
    for path in ("inbox/a", "inbox/deep/a", "uploads/a", "out/a"):
        assert volume.input_path(path) == root / path
    assert volume.output_path("out/new/a") == root / "out" / "new" / "a"
    for path in ("inbox/a", "uploads/a"):
        with pytest.raises(InvalidInput, match=r"below out/ \(FILES_OUTPUT_PATH\)"):
            volume.output_path(path)


def test_the_operator_can_choose_other_directories(root: Path) -> None:
    names = {"FILES_INPUT_PATHS": "models/rows, data", "FILES_OUTPUT_PATH": "data/results/"}
    volume = volume_of(FILES_PATH=str(root), **names)
    assert volume.input_path("models/rows/a") == root / "models" / "rows" / "a"
    assert volume.output_path("data/results/a") == root / "data" / "results" / "a"
    for path in ("inbox/a", "out/a", "models/a"):
        with pytest.raises(InvalidInput, match=r"below models/rows/, data/, data/results/ "):
            volume.input_path(path)


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
    "names a file": ["", "s3://bucket/", "s3://bucket"],
    "no control characters": [
        *("a\0b", "a\ud83d", "out/\x1b]0;title\x07", "out/\x1b[31m", "out/a\nb", "out/a\x9b"),
        *("out/a\u2028b", "out/a\tb", "out/\x7f"),
    ],
    "at most 32 directories": ["out/" + "a/" * 1500 + "b", "out/" + "a/" * 32 + "b", "/" * 33],
    "no such path can exist": ["circle", "circle/a", "a" * 300],
    "no other bucket": ["s3://other/out/a"],
}


@FOR_BOTH_KINDS
@pytest.mark.parametrize(
    ("reason", "path"), [(reason, path) for reason in REFUSED for path in REFUSED[reason]]
)
def test_a_path_that_leads_elsewhere_is_refused_with_the_reason(
    root: Path, resolve: Resolve, path: str, reason: str
) -> None:
    (root / "out" / "around").symlink_to(root.parent)
    (root / "out" / "file").symlink_to(root.parent / "secret")
    (root / "out" / "models").symlink_to(root / "models")
    (root / "circle").symlink_to(root / "circle")
    with pytest.raises(InvalidInput, match=reason):
        resolve(Volume(root, "bucket"), path.format(root))


@FOR_BOTH_KINDS
@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HF_HOME": "{}/out/hf"}, "out/hf"),
        # A file at this path would prevent the creation of the cache.
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
def test_paths_in_other_settings_belong_to_the_operator_wherever_they_lie(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    resolve: Resolve,
    environ: dict[str, str],
    path: str,
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
            resolve(volume, path)


def test_a_setting_that_names_the_volume_itself_makes_nothing_private(root: Path) -> None:
    environ = {name: str(root) for name in ("BASE_PATH", "HF_HUB_CACHE", "HOME", "PWD")}
    volume = volume_of(FILES_PATH=str(root), DATA=str(root.parent), **environ)
    assert volume.input_path("out/a") == root / "out" / "a"


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
            Volume(root).output_path(path)


@FOR_BOTH_KINDS
@search(
    max_examples=150, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(path=PATHS)
def test_any_path_is_refused_or_leads_to_a_directory_for_callers(
    root: Path, resolve: Resolve, path: str
) -> None:
    make_links(root)
    volume = volume_of(FILES_PATH=str(root), RUNPOD_VOLUME_ID="bucket", HF_HOME=f"{root}/out/hf")
    try:
        resolved = resolve(volume, path.replace("{}", str(root)))
    except InvalidInput:
        return
    top, *below = Path(os.path.realpath(resolved)).relative_to(root).parts
    assert top in (["out"] if resolve is Volume.output_path else ["inbox", "uploads", "out"])
    assert below
    assert not any(part.startswith(".") for part in below)
    assert not (top == "out" and below[0] == "hf")


def test_the_error_for_a_missing_volume_names_the_setting_to_change(tmp_path: Path) -> None:
    volume = volume_of(BASE_PATH=str(tmp_path / "no"))
    for method in (volume.worker_path, volume.input_path, volume.output_path):
        with pytest.raises(VolumeError, match="FILES_PATH") as exc_info:
            method("files")
        assert str(tmp_path) not in exc_info.value.message
    # A directory that the operator names need not exist yet.
    volume = volume_of(FILES_PATH=str(tmp_path / "new"))
    assert volume.worker_path("files") == tmp_path / "new" / "worker" / "files"
