"""What scripts for Scale LLM Engine are refused: its client's own errors, by their classes."""

from typing import Any

import pytest
from support.processes.llm_engine import CLASSES, PROXY, SERVE, Host

WAYS = ("sync", "stream", "async", "async stream")
# Parts of the messages.
WRONG = {
    "max_new_tokens": "max_new_tokens",
    "two guided keys": "guided",
    "regex": "regex",
    "grammar": "grammar",
    "too long": "2,048",
    "too large": "20,000,000",
}
PAST = {
    "temperature": "temperature",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "top_k": "top_k",
    "top_p": "top_p",
    "prompt": "prompt",
    "unknown key": "max_tokens",
    "form": "",
    "method": "/v1/files takes POST and GET",
}
FIELDS = ("temperature", "presence_penalty", "frequency_penalty", "top_k", "top_p")
NOT_THERE = (
    "file",
    "content",
    "deleted file",
    "batch",
    "model",
    "deleted model",
    "download",
    "fine-tune",
    "cancelled fine-tune",
    "events",
)
PARTS = ("unknown model", "by the worker", "in a stream", "out of range", "unknown")
# What the classes have no calls for, or make themselves.
OF_THE_CLIENT = ("past the client", "unknown route", "on the platform")


@pytest.fixture(scope="module")
def refusals(host: Host) -> dict[str, Any]:
    return host.printed("refused", *PARTS)


@pytest.fixture(scope="module")
def of_the_client(host: Host) -> dict[str, Any]:
    if host.way == CLASSES:
        pytest.skip("the classes have no such calls")
    return host.printed("refused", *OF_THE_CLIENT)


def check_bad(refusal: dict[str, str], part: str) -> None:
    assert refusal["error"] == "BadRequestError"
    assert part in refusal["message"]
    assert not refusal["message"].startswith("{"), "the message alone, without what is around it"


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_model_is_not_found(way: str, refusals: dict[str, Any]) -> None:
    refusal = refusals["unknown model"][way]
    assert refusal["error"] == "NotFoundError"
    assert "org/none" in refusal["message"]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_a_bad_one_with_the_reason(name: str, refusals: dict[str, Any]) -> None:
    check_bad(refusals["by the worker"][name], WRONG[name])


@pytest.mark.parametrize("name", PAST)
def test_so_is_one_that_the_client_does_not_make(name: str, of_the_client: dict[str, Any]) -> None:
    check_bad(of_the_client["past the client"][name], PAST[name])


@pytest.mark.parametrize("way", WAYS[1:])
def test_what_is_wrong_is_told_before_a_stream_begins(way: str, refusals: dict[str, Any]) -> None:
    refusal = refusals["in a stream"][way]
    assert refusal["error"] == "BadRequestError"
    assert "regex" in refusal["message"]


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_out_of_range_is_refused_by_the_client_itself_or_by_the_worker(
    name: str, host: Host, refusals: dict[str, Any]
) -> None:
    refusal = refusals["out of range"][name]
    expected = "BadRequestError" if host.way == CLASSES else "ValidationError"
    assert (refusal["error"], name in refusal["message"]) == (expected, True)


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_is_not_there_is_not_found(name: str, refusals: dict[str, Any]) -> None:
    assert refusals["unknown"][name]["error"] == "NotFoundError"


def test_an_unknown_route_is_not_found(of_the_client: dict[str, Any]) -> None:
    assert of_the_client["unknown route"]["route"]["error"] == "NotFoundError"


@pytest.mark.parametrize("name", ["create", "update", "update of a name with slashes"])
def test_models_are_made_on_the_platform(name: str, of_the_client: dict[str, Any]) -> None:
    refusal = of_the_client["on the platform"][name]
    assert refusal["error"] == "BadRequestError"
    assert "platform" in refusal["message"]


def test_a_wrong_key_is_unauthorized(host: Host) -> None:
    if host.way not in {SERVE, PROXY}:
        pytest.skip("there is no key of callers")
    refusals = host.printed("refused", "wrong key")["wrong key"]
    assert refusals.keys() == {*WAYS, "models", "files"}
    for way, refusal in refusals.items():
        assert refusal["error"] == "UnauthorizedError", way
