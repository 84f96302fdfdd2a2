"""Where the input and the output of LLM Engine's batches may lie."""

from pathlib import Path

import pytest

from worker.batches.llm_engine.places import Output, input_place
from worker.errors import Conflict, InvalidInput, NoSuchObject, VolumeError
from worker.files import Files
from worker.volume import Volume


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def files(root: Path) -> Files:
    return Files(Volume(root, bucket="vol1"), max_mb=1, retention_days=1)


def reserve(path: str, files: Files, batch_id: str = "batch_a") -> None:
    with Output(path, files, batch_id).reserved():
        pass


def test_an_input_is_a_file_or_lies_on_the_volume(root: Path, files: Files) -> None:
    stored = files.receive([b"[]"], filename="in.json")
    assert input_place(stored.id, files).read_bytes() == b"[]"
    for path in ("inbox/in.json", "s3://vol1/inbox/in.json", str(root / "inbox" / "in.json")):
        assert input_place(path, files) == root / "inbox" / "in.json"


def test_a_file_that_is_not_there_is_not_found(files: Files) -> None:
    with pytest.raises(NoSuchObject):
        input_place("file-" + "a" * 24, files)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_is_refused_with_what_to_give_instead(files: Files, scheme: str) -> None:
    address = f"{scheme}://example.com/in.json"
    with pytest.raises(InvalidInput, match="or the id of a file that was sent to /v1/files"):
        input_place(address, files)
    with pytest.raises(InvalidInput, match=r"s3://<volume id>/key$"):
        reserve(address, files)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "s3://other/x", "worker/files/x", ""])
def test_a_place_that_is_not_for_callers_is_refused_by_its_key(files: Files, path: str) -> None:
    for use, key in ((input_place, "input_data_path"), (reserve, "output_data_path")):
        with pytest.raises(InvalidInput) as refused:
            use(path, files)
        assert refused.value.param == key
        assert refused.value.message.startswith(f"{key}: ")


def test_an_output_is_reserved_for_one_batch_until_it_is_written(root: Path, files: Files) -> None:
    place = root / "out" / "a" / "out.json"
    output = Output("out/a/out.json", files, "batch_a")
    with output.reserved():
        assert place.read_bytes() == b'{"job_id": "batch_a"}\n'
    # The same batch, as by a job that comes again.
    reserve("out/a/out.json", files, "batch_a")
    for other in ("batch_b", "batch_a1", "batch_"):
        with pytest.raises(Conflict, match="or a batch's output"):
            reserve("out/a/out.json", files, other)
    output.write(lambda: [b"[", b"]"])
    assert place.read_bytes() == b"[]"
    output.release()
    output.write(lambda: [b"[]"])
    assert place.read_bytes() == b"[]"
    with pytest.raises(Conflict, match="somebody else"):
        output.write(lambda: [b"[1]"])


def test_a_batch_that_is_not_created_releases_its_output(root: Path, files: Files) -> None:
    with pytest.raises(RuntimeError), Output("out/a", files, "batch_a").reserved():
        raise RuntimeError
    assert [*(root / "out").iterdir()] == []


def test_an_output_whose_reservation_was_removed_is_written(root: Path, files: Files) -> None:
    reserve("out/a", files)
    (root / "out" / "a").unlink()
    Output("out/a", files, "batch_a").write(lambda: [b"[]"])
    assert (root / "out" / "a").read_bytes() == b"[]"


def test_an_output_that_can_be_no_file_is_refused_before_anything_runs(
    root: Path, files: Files
) -> None:
    (root / "out" / "a").mkdir(parents=True)
    (root / "out" / "a" / "file").write_text("")
    for path in ("out/a", "out/a/file/out.json", "out/a/file/b/out.json"):
        with pytest.raises(InvalidInput, match="no file can be there") as caught:
            reserve(path, files)
        assert str(root) not in caught.value.message


def test_without_a_volume_the_operator_is_told(tmp_path: Path) -> None:
    missing = Volume(tmp_path / "none", optional=False)
    with pytest.raises(VolumeError, match="FILES_PATH"):
        reserve("out/out.json", Files(missing, max_mb=1, retention_days=1))
