"""The arrays that LLM Engine's batches end as."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.batches.llm_engine import rendering

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
LOG_PROBS = {
    "tokens": [" a", "b"],
    "token_logprobs": [-0.5, -1],
    "top_logprobs": [{" a": -0.5}, {"b": -1}],
    "text_offset": [0, 2],
}
COMPLETION: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "choices": [{"index": 0, "text": " ab", "logprobs": None, "finish_reason": "length"}],
    "usage": USAGE,
}
ERROR = {"error": {"message": "too long", "code": 400}}
NOT_ASKED = {"code": "batch_expired", "message": "the batch has expired"}


def line(body: Any, status: int = 200) -> bytes:
    response = {"status_code": status, "request_id": "r", "body": body}
    return json.dumps({"id": "1", "custom_id": "0", "response": response, "error": None}).encode()


EXPIRED = json.dumps({"id": "1", "custom_id": "0", "response": None, "error": NOT_ASKED}).encode()


def test_a_completion_of_v1_is_told_in_llm_engines_words() -> None:
    assert json.loads(rendering.v1(line(COMPLETION))) == {
        "text": " ab",
        "num_prompt_tokens": 5,
        "num_completion_tokens": 2,
    }


def test_log_probabilities_of_v1_are_tokens() -> None:
    choice = {**COMPLETION["choices"][0], "logprobs": LOG_PROBS}
    item = json.loads(rendering.v1(line({**COMPLETION, "choices": [choice]})))
    assert item["tokens"] == [{"token": " a", "log_prob": -0.5}, {"token": "b", "log_prob": -1}]


def test_an_answer_that_is_no_completion_is_null_and_stands_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert rendering.v1(line({"choices": []})) == b"null"
    assert "no completion" in caplog.text


@pytest.mark.parametrize("found", [line(ERROR, 400), EXPIRED, None])
def test_what_failed_or_was_not_asked_is_null_in_v1(found: bytes | None) -> None:
    assert rendering.v1(found) == b"null"


def test_a_body_of_v2_stays_as_it_is() -> None:
    assert json.loads(rendering.v2(line(COMPLETION))) == COMPLETION
    assert json.loads(rendering.v2(line(ERROR, 400))) == ERROR


@pytest.mark.parametrize("found", [EXPIRED, None])
def test_what_was_not_asked_is_null_in_v2(found: bytes | None) -> None:
    assert rendering.v2(found) == b"null"


def test_no_requests_are_an_empty_array() -> None:
    assert json.loads(b"".join(rendering.array([], rendering.v2))) == []


@settings(deadline=None, database=None)
@given(st.lists(st.none() | st.dictionaries(st.text(), st.text())))
def test_the_array_has_one_item_for_each_request_in_their_order(bodies: list[Any]) -> None:
    found = [None if body is None else line(body) for body in bodies]
    parts = list(rendering.array(iter(found), rendering.v2))
    assert json.loads(b"".join(parts)) == bodies
    # It can be written while it is made.
    assert len(parts) == len(bodies) + 1
