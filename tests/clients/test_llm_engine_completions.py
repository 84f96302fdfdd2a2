"""Completions with scripts for Scale LLM Engine, each way that they reach a worker."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes.http_worker import KEY, http_worker
from support.processes.llm_engine import CLASSES, SERVE, Host, over_http

STORY = " that lived beside a wide river of tokens. Every morning it filled a cup for each guest."
PROMPT_TOKENS = 15
HELLO = "Hello! Ask me about chunks, settings, models or how to cancel a job."
NAMES = (
    "plain",
    "log probabilities",
    "one choice",
    "small nucleus",
    "all tokens",
    "stop",
    "with the stop",
    "frequency",
    "presence",
    "no penalty",
    "json",
    "null in an enum",
    "regex",
    "choice",
    "grammar",
    "other name",
    "to its end",
    "special tokens",
)
MODES = ("sync", "async")


@pytest.fixture(scope="module")
def answers(host: Host) -> dict[str, Any]:
    """Return the answers that the script got."""
    found = host.printed("completions")
    assert set(found["sync"]) == set(found["async"]) == set(NAMES)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_a_stream_is_the_whole_answer_in_counted_parts(
    name: str, mode: str, answers: dict[str, Any]
) -> None:
    asked = answers[mode][name]
    whole, events = asked["whole"]["output"], [event["output"] for event in asked["events"]]
    assert "".join(event["text"] for event in events) == whole["text"]
    counts = [event["num_completion_tokens"] for event in events]
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, whole["num_completion_tokens"])
    assert [event["finished"] for event in events] == [False] * (len(events) - 1) + [True]
    told = [event["num_prompt_tokens"] for event in events]
    assert told == [None] * (len(events) - 1) + [whole["num_prompt_tokens"]]
    ids = {event["request_id"] for event in asked["events"]}
    assert len(ids | {asked["whole"]["request_id"]}) == 2
    assert all(event["error"] is None for event in asked["events"])


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_is_the_models(mode: str, answers: dict[str, Any]) -> None:
    output = answers[mode]["plain"]["whole"]["output"]
    assert output["text"]
    assert STORY.startswith(output["text"])
    assert output["num_prompt_tokens"] == PROMPT_TOKENS
    assert output["num_completion_tokens"] == 16
    assert output["tokens"] is None


def test_each_token_is_an_event(answers: dict[str, Any]) -> None:
    events = answers["sync"]["plain"]["events"]
    assert [event["output"]["num_completion_tokens"] for event in events] == [*range(1, 17)]
    assert all(event["output"]["token"] is None for event in events)


@pytest.mark.parametrize("mode", MODES)
def test_log_probabilities_come_with_each_token(mode: str, answers: dict[str, Any]) -> None:
    asked = answers[mode]["log probabilities"]
    output = asked["whole"]["output"]
    assert "".join(token["token"] for token in output["tokens"]) == output["text"]
    assert all(token["log_prob"] <= 0 for token in output["tokens"])
    streamed = [event["output"]["token"] for event in asked["events"]]
    assert [token["token"] for token in streamed] == [token["token"] for token in output["tokens"]]
    for token, alone in zip(streamed, output["tokens"], strict=True):
        assert token["log_prob"] == pytest.approx(alone["log_prob"], abs=1e-2)


@pytest.mark.parametrize("name", ["one choice", "small nucleus", "all tokens", "other name"])
def test_what_leaves_one_choice_is_the_likeliest_text(name: str, answers: dict[str, Any]) -> None:
    plain = answers["sync"]["plain"]["whole"]["output"]["text"]
    for mode in MODES:
        assert answers[mode][name]["whole"]["output"]["text"] == plain


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_sequence_ends_the_text(mode: str, answers: dict[str, Any]) -> None:
    texts = {name: asked["whole"]["output"]["text"] for name, asked in answers[mode].items()}
    assert texts["stop"] == " that lived beside a"
    assert texts["with the stop"] == " that lived beside a wide"


@pytest.mark.parametrize("mode", MODES)
def test_penalties_change_the_text(mode: str, answers: dict[str, Any]) -> None:
    texts = {name: asked["whole"]["output"]["text"] for name, asked in answers[mode].items()}
    assert texts["no penalty"] not in {texts["frequency"], texts["presence"]}


@pytest.mark.parametrize("mode", MODES)
def test_guided_answers_are_what_was_asked_for(mode: str, answers: dict[str, Any]) -> None:
    texts = {name: asked["whole"]["output"]["text"] for name, asked in answers[mode].items()}
    learnt = {"name": "demo", "streams": True, "chunks": [1, 3, 9, 27]}
    assert json.loads(texts["json"]) == learnt
    assert json.loads(texts["null in an enum"]) == {**learnt, "streams": None}
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", texts["regex"])
    assert texts["choice"] in {"Paris", "London"}
    assert texts["grammar"] in {"yes no end", "yes perhaps end"}


@pytest.mark.parametrize("mode", MODES)
def test_special_tokens_are_shown_where_they_are_not_skipped(
    mode: str, answers: dict[str, Any]
) -> None:
    texts = {name: asked["whole"]["output"]["text"] for name, asked in answers[mode].items()}
    assert texts["to its end"] == HELLO
    assert texts["special tokens"] == f"{HELLO}<|im_end|>"


def test_without_parameters_there_are_at_most_twenty_tokens(answers: dict[str, Any]) -> None:
    assert 1 <= answers["defaults"]["output"]["num_completion_tokens"] <= 20


def test_a_base_has_or_lacks_what_belongs_to_a_path(host: Host) -> None:
    if host.way == CLASSES:
        pytest.skip("the classes have no base")
    ends = ("/v1", "/v1/") if host.way == SERVE else ("/v2/local/", "/v2/local/openai")
    found = host.printed("bases", host.url, *(f"{host.url}{end}" for end in ("/", *ends)))
    first, *others = found.values()
    assert others == [first] * 3
    assert first["text"] == first["stream"]
    assert STORY.startswith(first["text"])
    assert (first["content"], first["listed"], first["deleted"]) == ("a,b", True, True)
    assert {"demo", "tiny/demo"} < set(first["models"])
    assert first["model"] == "tiny/demo"
    errors = [first[name] for name in ("batch", "unknown", "platform")]
    assert errors == ["NotFoundError", "NotFoundError", "BadRequestError"]


def test_a_hundred_calls_at_once_are_each_answered_right(host: Host) -> None:
    answers = host.printed("mixed")
    alone = answers["alone"]
    assert (alone["refused"], alone["refused async"]) == ("NotFoundError", "BadRequestError")
    assert alone["acreate"] == alone["create"]
    assert alone["async stream"] == alone["stream"]
    assert alone["file"] == ["prompt,response", True]
    assert len(answers["together"]) == 100
    for name, answer in answers["together"]:
        assert answer == alone[name], name


@pytest.fixture(scope="module")
def busy(
    llm_engine: Host,
    worker_environ: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    """Return a worker that computes one request, while another waits."""
    settings = {"SERVE_API_KEY": KEY, "MAX_CONCURRENCY": "1", "MAX_NUM_SEQS": "1"}
    log: Path = tmp_path_factory.mktemp("busy") / "log"
    with http_worker({**worker_environ, **settings}, log) as running:
        yield over_http(SERVE, running.url, llm_engine.volume, llm_engine.model)


def test_what_a_worker_has_no_room_for_is_a_server_error(busy: Host) -> None:
    for ended in busy.printed("busy").values():
        (refusal,) = [one for one in ended if isinstance(one, dict)]
        assert refusal["error"] == "ServerError"
        assert "status_code=503" in refusal["message"]
        assert [one for one in ended if one is not refusal] == [800, 800]
