"""Where the input and the output of LLM Engine's batches may lie."""

from pathlib import Path

import pytest

from worker.batches.llm_engine.places import input_place, output_place
from worker.errors import InvalidInput, NoSuchObject, VolumeError
from worker.files import Files
from worker.volume import Volume


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path / "root", bucket="vol1")


@pytest.fixture
def files(volume: Volume) -> Files:
    return Files(volume, max_mb=1, retention_days=1)


def test_an_input_is_a_file_or_lies_on_the_volume(volume: Volume, files: Files) -> None:
    stored = files.receive([b"[]"], filename="in.json")
    assert input_place(stored.id, volume, files).read_bytes() == b"[]"
    for path in ("a/in.json", "s3://vol1/a/in.json", str(volume.root / "a" / "in.json")):
        assert input_place(path, volume, files) == volume.root / "a" / "in.json"


def test_a_file_that_is_not_there_is_not_found(volume: Volume, files: Files) -> None:
    with pytest.raises(NoSuchObject):
        input_place("file-" + "a" * 24, volume, files)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_is_refused_with_what_to_give_instead(
    volume: Volume, files: Files, scheme: str
) -> None:
    address = f"{scheme}://example.com/in.json"
    with pytest.raises(InvalidInput, match=r"input_data_path: .*/v1/files"):
        input_place(address, volume, files)
    with pytest.raises(InvalidInput, match=r"output_data_path: .*s3://<volume id>/key") as caught:
        output_place(address, volume)
    assert caught.value.param == "output_data_path"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "s3://other/x", "worker/files/x", ""])
def test_a_place_that_is_not_for_callers_is_refused_by_its_key(
    volume: Volume, files: Files, path: str
) -> None:
    with pytest.raises(InvalidInput, match=r"^input_data_path: "):
        input_place(path, volume, files)
    with pytest.raises(InvalidInput, match=r"^output_data_path: "):
        output_place(path, volume)


def test_an_output_may_go_to_directories_that_are_not_there_yet(volume: Volume) -> None:
    assert output_place("a/b/out.json", volume) == volume.root / "a" / "b" / "out.json"


def test_an_output_that_can_be_no_file_is_refused_before_anything_runs(volume: Volume) -> None:
    (volume.root / "a").mkdir(parents=True)
    (volume.root / "a" / "file").write_text("")
    for path in ("a", "a/file/out.json", "a/file/b/out.json"):
        with pytest.raises(InvalidInput, match="no file can be there") as caught:
            output_place(path, volume)
        assert str(volume.root) not in caught.value.message


def test_without_a_volume_the_operator_is_told(tmp_path: Path) -> None:
    missing = Volume(tmp_path / "none", optional=False)
    with pytest.raises(VolumeError, match="FILES_PATH"):
        output_place("out.json", missing)
