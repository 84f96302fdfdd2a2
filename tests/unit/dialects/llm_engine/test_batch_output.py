"""The input and output files of LLM Engine's batches, and the arrays in the output files."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.volume import make_files

from worker.dialects.llm_engine import batch_output
from worker.dialects.llm_engine.batch_inputs import locate_input_file
from worker.dialects.llm_engine.batch_output import ArrayOutput
from worker.errors import Conflict, InvalidInput, NoSuchObject
from worker.files import Files
from worker.volume import Volume

# The array of a batch with one request that has no response.
NULL_ARRAY = b"[\nnull\n]\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def files(root: Path) -> Files:
    return make_files(Volume(root, bucket="vol1"))


def reserve(path: str, files: Files, batch_id: str = "batch_a") -> None:
    with ArrayOutput(path, files, batch_id).reserve():
        pass


def test_an_input_is_an_uploaded_file_or_a_path_on_the_volume(root: Path, files: Files) -> None:
    stored = files.receive([b"[]"], filename="in.json")
    assert locate_input_file(stored.id, files).read_bytes() == b"[]"
    for path in ("inbox/in.json", "s3://vol1/inbox/in.json", str(root / "inbox" / "in.json")):
        assert locate_input_file(path, files) == root / "inbox" / "in.json"
    with pytest.raises(NoSuchObject):
        locate_input_file("file-" + "a" * 24, files)


@pytest.mark.parametrize(
    ("key", "function", "advice"),
    [
        ("input_data_path", locate_input_file, "the id of a file that was sent to /v1/files"),
        ("output_data_path", reserve, "s3://<volume id>/key"),
    ],
)
def test_invalid_locations_are_refused_with_the_key(
    files: Files, key: str, function: Any, advice: str
) -> None:
    addresses = [f"{scheme}://example.com/in.json" for scheme in ("http", "https")]
    for path in (*addresses, "../x", "/etc/passwd", "s3://other/x", "worker/files/x", ""):
        with pytest.raises(InvalidInput) as caught:
            function(path, files)
        assert (caught.value.param, caught.value.message[: len(key) + 2]) == (key, f"{key}: ")
        assert (advice in caught.value.message) == (path in addresses)


def test_an_output_is_reserved_for_one_batch_until_it_is_written(root: Path, files: Files) -> None:
    path = root / "out" / "a" / "out.json"
    output = ArrayOutput("out/a/out.json", files, "batch_a")
    with output.reserve():
        assert path.read_bytes() == b'{"job_id": "batch_a"}\n'
    # A repeated job reserves the output for the same batch again.
    reserve("out/a/out.json", files, "batch_a")
    for other in ("batch_b", "batch_a1", "batch_"):
        with pytest.raises(Conflict, match="or a batch's output"):
            reserve("out/a/out.json", files, other)
    output.write(lambda: [None])
    assert path.read_bytes() == NULL_ARRAY
    output.release_reserved_file()
    output.write(lambda: [None])
    assert path.read_bytes() == NULL_ARRAY
    with pytest.raises(Conflict, match="another process"):
        output.write(lambda: [None, None])


def test_a_batch_that_is_not_created_releases_its_output(root: Path, files: Files) -> None:
    with pytest.raises(RuntimeError), ArrayOutput("out/a", files, "batch_a").reserve():
        raise RuntimeError
    assert [*(root / "out").iterdir()] == []
    # An output whose reservation was removed is written.
    ArrayOutput("out/a", files, "batch_a").write(lambda: [None])
    assert (root / "out" / "a").read_bytes() == NULL_ARRAY


def test_an_output_path_that_cannot_be_a_file_is_refused(root: Path, files: Files) -> None:
    (root / "out" / "a").mkdir(parents=True)
    (root / "out" / "a" / "file").write_text("")
    for path in ("out/a", "out/a/file/out.json", "out/a/file/b/out.json"):
        with pytest.raises(InvalidInput, match="no file can be created there") as caught:
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
    ("result", "v1", "v2"),
    [
        (line(COMPLETION), ITEM, COMPLETION),
        (line(WITH_LOG_PROBS), {**ITEM, "tokens": TOKENS}, WITH_LOG_PROBS),
        (line(ERROR, 400), None, ERROR),
        (line(STRANGE), None, STRANGE),
        (EXPIRED, None, None),
        (None, None, None),
    ],
    ids=["completion", "log probabilities", "failed", "strange", "expired", "missing"],
)
def test_v1_renames_the_keys_of_a_response_and_v2_keeps_them(
    result: bytes | None, v1: Any, v2: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert (
        json.loads(batch_output.make_item_v1(result)),
        json.loads(batch_output.make_item_v2(result)),
    ) == (v1, v2)
    assert ("not a completion" in caplog.text) is (v2 == STRANGE)


@pytest.mark.parametrize("bodies", [[], [None], [{"a": "b"}], [{"a": "\n"}, None, {}]])
def test_the_array_has_one_item_per_request_in_order(
    root: Path, files: Files, bodies: list[Any]
) -> None:
    results = [None if body is None else line(body) for body in bodies]
    ArrayOutput("out/a", files, "batch_a").write(lambda: results)
    assert json.loads((root / "out" / "a").read_bytes()) == bodies
