"""Where callers' paths lead: to files on the volume, and nowhere else."""

from pathlib import Path

import pytest

from worker.errors import InvalidInput, VolumeError
from worker.settings import Settings
from worker.volume import Volume


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "volume"
    (root / "in").mkdir(parents=True)
    (tmp_path / "secret").write_text("out of the volume")
    return root


@pytest.mark.parametrize(
    "path", ["in/a.jsonl", "./in//a.jsonl", "in/../in/a.jsonl", "s3://bucket/in/a.jsonl", "{}"]
)
def test_a_path_of_any_form_leads_to_the_file(root: Path, path: str) -> None:
    path = path.format(root / "in" / "a.jsonl")
    assert Volume(root, "bucket").place(path) == root / "in" / "a.jsonl"


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "in/../../secret",
        "/etc/passwd",
        "s3://bucket/../secret",
        "s3://bucket//etc/passwd",
        "out",
        "out/secret",
        "file",
        ".",
        "/",
        "{}",
        "../volume2/a",
    ],
)
def test_a_path_out_of_the_volume_is_refused(root: Path, path: str) -> None:
    (root / "out").symlink_to(root.parent)
    (root / "file").symlink_to(root.parent / "secret")
    with pytest.raises(InvalidInput, match="leads out of the volume"):
        Volume(root, "bucket").place(path.format(root))


@pytest.mark.parametrize("path", ["", "s3://bucket/", "s3://bucket", "a\0b"])
def test_a_path_that_names_nothing_is_refused(root: Path, path: str) -> None:
    with pytest.raises(InvalidInput, match="names a file"):
        Volume(root, "bucket").place(path)


@pytest.mark.parametrize("path", ["circle", "circle/a", "a" * 300, "a/" * 3000, "a\ud83d"])
def test_a_path_that_can_lead_nowhere_is_refused(root: Path, path: str) -> None:
    (root / "circle").symlink_to(root / "circle")
    with pytest.raises(InvalidInput, match="leads to nothing"):
        Volume(root, "bucket").place(path)


@pytest.mark.parametrize("bucket", [None, "bucket"])
def test_another_bucket_is_refused(root: Path, bucket: str | None) -> None:
    with pytest.raises(InvalidInput, match="no other bucket"):
        Volume(root, bucket).place("s3://other/in/a.jsonl")


@pytest.mark.parametrize(
    "path",
    [
        "worker/files/file-x/content",
        "huggingface-cache/token",
        "compile-cache",
        "in/../worker/batches",
        "link/files",
        "s3://bucket/worker/files",
    ],
)
def test_the_workers_own_directories_are_refused(root: Path, path: str) -> None:
    (root / "worker").mkdir()
    (root / "link").symlink_to(root / "worker")
    with pytest.raises(InvalidInput, match="the worker's own"):
        Volume(root, "bucket").place(path)


def test_a_link_inside_the_volume_is_followed(root: Path) -> None:
    (root / "link").symlink_to(root / "in")
    assert Volume(root).place("link/a.jsonl") == root / "in" / "a.jsonl"


def test_a_volume_that_is_reached_by_a_link_is_the_same(root: Path) -> None:
    other = root.parent / "mounted"
    other.symlink_to(root)
    assert Volume(other).place("in/a.jsonl") == root / "in" / "a.jsonl"
    assert Volume(other).place(str(other / "in" / "a.jsonl")) == root / "in" / "a.jsonl"


def test_without_a_volume_nothing_is_kept_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    settings = Settings.from_env({"MODEL_NAME": "m", "BASE_PATH": str(tmp_path / "no")})
    volume = Volume.of(settings)
    for act in (volume.directory, volume.place):
        with pytest.raises(VolumeError, match="FILES_PATH") as refused:
            act("files")
        assert str(tmp_path) not in refused.value.message


def test_files_path_need_not_exist_yet(tmp_path: Path) -> None:
    environ = {"MODEL_NAME": "m", "FILES_PATH": str(tmp_path / "new"), "RUNPOD_VOLUME_ID": "b"}
    volume = Volume.of(Settings.from_env(environ))
    assert volume.directory("files") == tmp_path / "new" / "worker" / "files"
    assert volume.bucket == "b"
