"""Where LLM Engine's batches lie, and the arrays that they end as."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker.dialects.llm_engine import batch_output
from worker.dialects.llm_engine.batch_inputs import input_place
from worker.dialects.llm_engine.batch_output import ArrayOutput
from worker.errors import Conflict, InvalidInput, NoSuchObject
from worker.files import Files
from worker.volume import Volume

# Of one request that has no answer.
ARRAY = b"[\nnull\n]\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def files(root: Path) -> Files:
    return Files(Volume(root, bucket="vol1"), max_mb=1, retention_days=1)


def reserve(path: str, files: Files, batch_id: str = "batch_a") -> None:
    with ArrayOutput(path, files, batch_id).reserved():
        pass


def test_an_input_is_a_file_or_lies_on_the_volume(root: Path, files: Files) -> None:
    stored = files.receive([b"[]"], filename="in.json")
    assert input_place(stored.id, files).read_bytes() == b"[]"
    for path in ("inbox/in.json", "s3://vol1/inbox/in.json", str(root / "inbox" / "in.json")):
        assert input_place(path, files) == root / "inbox" / "in.json"
    with pytest.raises(NoSuchObject):
        input_place("file-" + "a" * 24, files)


@pytest.mark.parametrize(
    ("key", "use", "instead"),
    [
        ("input_data_path", input_place, "the id of a file that was sent to /v1/files"),
        ("output_data_path", reserve, "s3://<volume id>/key"),
    ],
)
def test_wrong_places_are_refused_by_key(files: Files, key: str, use: Any, instead: str) -> None:
    addresses = [f"{scheme}://example.com/in.json" for scheme in ("http", "https")]
    for path in (*addresses, "../x", "/etc/passwd", "s3://other/x", "worker/files/x", ""):
        with pytest.raises(InvalidInput) as refused:
            use(path, files)
        assert (refused.value.param, refused.value.message[: len(key) + 2]) == (key, f"{key}: ")
        assert (instead in refused.value.message) == (path in addresses)


def test_an_output_is_reserved_for_one_batch_until_it_is_written(root: Path, files: Files) -> None:
    place = root / "out" / "a" / "out.json"
    output = ArrayOutput("out/a/out.json", files, "batch_a")
    with output.reserved():
        assert place.read_bytes() == b'{"job_id": "batch_a"}\n'
    # The same batch, as by a job that comes again.
    reserve("out/a/out.json", files, "batch_a")
    for other in ("batch_b", "batch_a1", "batch_"):
        with pytest.raises(Conflict, match="or a batch's output"):
            reserve("out/a/out.json", files, other)
    output.write(lambda: [None])
    assert place.read_bytes() == ARRAY
    output.release()
    output.write(lambda: [None])
    assert place.read_bytes() == ARRAY
    with pytest.raises(Conflict, match="somebody else"):
        output.write(lambda: [None, None])


def test_a_batch_that_is_not_created_releases_its_output(root: Path, files: Files) -> None:
    with pytest.raises(RuntimeError), ArrayOutput("out/a", files, "batch_a").reserved():
        raise RuntimeError
    assert [*(root / "out").iterdir()] == []
    # One whose reservation somebody has removed is written.
    ArrayOutput("out/a", files, "batch_a").write(lambda: [None])
    assert (root / "out" / "a").read_bytes() == ARRAY


def test_an_output_that_can_be_no_file_is_refused_at_once(root: Path, files: Files) -> None:
    (root / "out" / "a").mkdir(parents=True)
    (root / "out" / "a" / "file").write_text("")
    for path in ("out/a", "out/a/file/out.json", "out/a/file/b/out.json"):
        with pytest.raises(InvalidInput, match="no file can be there") as caught:
            reserve(path, files)
        assert str(root) not in caught.value.message


USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
LOG_PROBS = {"tokens": [" a", "b"], "token_logprobs": [-0.5, -1]}
COMPLETION: dict[str, Any] = {"choices": [{"text": " ab", "logprobs": None}], "usage": USAGE}
WITH_LOG_PROBS = {**COMPLETION, "choices": [{"text": " ab", "logprobs": LOG_PROBS}]}
ITEM = {"text": " ab", "num_prompt_tokens": 5, "num_completion_tokens": 2}
TOKENS = [{"token": " a", "log_prob": -0.5}, {"token": "b", "log_prob": -1}]
ERROR = {"error": {"message": "too long", "code": 400}}
STRANGE: dict[str, Any] = {"choices": []}


def line(body: Any, status: int = 200) -> bytes:
    response = {"status_code": status, "request_id": "r", "body": body}
    return json.dumps({"id": "1", "custom_id": "0", "response": response, "error": None}).encode()


EXPIRED = json.dumps({"id": "1", "custom_id": "0", "response": None, "error": ERROR}).encode()


@pytest.mark.parametrize(
    ("found", "v1", "v2"),
    [
        (line(COMPLETION), ITEM, COMPLETION),
        (line(WITH_LOG_PROBS), {**ITEM, "tokens": TOKENS}, WITH_LOG_PROBS),
        (line(ERROR, 400), None, ERROR),
        (line(STRANGE), None, STRANGE),
        (EXPIRED, None, None),
        (None, None, None),
    ],
    ids=["completion", "log probabilities", "failed", "strange", "not asked", "lost"],
)
def test_an_answer_is_renamed_in_v1_and_as_it_is_in_v2(
    found: bytes | None, v1: Any, v2: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert (json.loads(batch_output.v1(found)), json.loads(batch_output.v2(found))) == (v1, v2)
    assert ("no completion" in caplog.text) is (v2 == STRANGE)


@pytest.mark.parametrize("bodies", [[], [None], [{"a": "b"}], [{"a": "\n"}, None, {}]])
def test_the_array_has_one_item_for_each_request_in_their_order(
    root: Path, files: Files, bodies: list[Any]
) -> None:
    results = [None if body is None else line(body) for body in bodies]
    ArrayOutput("out/a", files, "batch_a").write(lambda: results)
    assert json.loads((root / "out" / "a").read_bytes()) == bodies
