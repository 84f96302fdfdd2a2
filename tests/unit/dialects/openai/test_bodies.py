"""Request bodies as vLLM's server gets them: models, conversations, unknown keys."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, settings

from worker.dialects.openai import bodies
from worker.dialects.table import ROUTES
from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.media.walker import DENIED
from worker.routes.route import Route

COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
TOKENIZE = "/tokenize"

SYSTEM = {"SYSTEM_PROMPT": "Be brief."}
USER = {"role": "user", "content": "Hi"}
OPENED = {"role": "system", "content": "Be brief."}

Prepare = Callable[..., dict[str, Any]]


@pytest.fixture
def prepare(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Return a function that turns a caller's body for a route into the body for vLLM's server."""
    monkeypatch.setattr(bodies, "_logged", set())

    def prepared(
        path: str, body: dict[str, Any], route: str | None = None, **environ: str
    ) -> dict[str, Any]:
        job = OpenAIJob(route=route or path, body=body)
        row = next((row for row in ROUTES if row.path == path), Route("POST", path))
        before = copy.deepcopy(body)
        sent = bodies.prepare(job, row, engine, "job-1", settings(**environ)).body
        assert body == before  # the caller's stays as it was sent
        assert sent is not None
        return sent

    return prepared


def refusal(prepare: Prepare, path: str, body: Any, **environ: str) -> tuple[str, str | None]:
    with pytest.raises(InvalidInput) as caught:
        prepare(path, body, **environ)
    return caught.value.message, caught.value.param


# Keys that callers may not send:


def test_keys_that_callers_may_not_send_are_refused(prepare: Prepare) -> None:
    for name, why in DENIED.items():
        refused: list[Any] = [{name: {}}, {"chat_template_kwargs": {name: False}}]
        for path, body in itertools.product((CHAT, TOKENIZE), refused):
            assert refusal(prepare, path, body) == (f"{name}: not in a request: {why}", name)


def test_null_counts_as_absent(prepare: Prepare) -> None:
    body: dict[str, Any] = {"prompt_embeds": None, "model": None, "echo": None, "prompt": [None]}
    assert prepare(COMPLETIONS, body) == {"model": "demo", "prompt": [None]}


# Conversations:


@pytest.mark.parametrize(("path", "route"), [(CHAT, "/chat/completions"), (TOKENIZE, "/tokenize")])
def test_a_text_is_one_users_message_after_the_operators(
    prepare: Prepare, path: str, route: str
) -> None:
    for version in ("", "/v1"):
        assert prepare(path, {"messages": "Hi"}, version + route)["messages"] == [USER]
    for messages in ("Hi", [USER]):
        assert prepare(path, {"messages": messages}, **SYSTEM)["messages"] == [OPENED, USER]
    # vLLM refuses an empty conversation.
    assert prepare(path, {"messages": []})["messages"] == []


def test_a_message_may_do_without_a_role_where_the_route_has_no_version(prepare: Prepare) -> None:
    messages = [{"content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    unversioned = prepare(CHAT, {"messages": messages}, "chat/completions")
    assert unversioned["messages"] == [USER, messages[1]]
    assert prepare(CHAT, {"messages": messages})["messages"] == messages


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_callers_own_words_of_that_kind_win(prepare: Prepare, role: str) -> None:
    messages = [USER, {"role": role, "content": "Be long."}]
    assert prepare(CHAT, {"messages": messages}, **SYSTEM)["messages"] == messages
    asked = prepare(RESPONSES, {"input": messages}, **SYSTEM)
    assert (asked["input"], "instructions" in asked) == (messages, False)


@pytest.mark.parametrize(
    ("messages", "place", "kind"),
    [
        (5, "messages", "list"),
        ([USER, "Hi"], "messages.1", "dictionary"),
        ([None], "messages.0", "dictionary"),
        ([USER, {**USER, "tool_calls": 5}], "messages.1.tool_calls", "list"),
    ],
    ids=repr,
)
def test_invalid_messages_are_refused(
    prepare: Prepare, messages: Any, place: str, kind: str
) -> None:
    message = f"{place}: Input should be a valid {kind}"
    assert refusal(prepare, CHAT, {"messages": messages}, **SYSTEM) == (message, place)


def test_a_prompt_is_not_a_conversation(prepare: Prepare) -> None:
    asked = prepare(TOKENIZE, {"prompt": "Hi", "messages": None}, **SYSTEM)
    assert asked == {"prompt": "Hi", "model": "demo"}


@pytest.mark.parametrize(
    ("path", "name"), [(RESPONSES, "instructions"), (MESSAGES, "system"), (COUNT, "system")]
)
def test_the_operators_words_fill_their_own_key(prepare: Prepare, path: str, name: str) -> None:
    assert prepare(path, {name: None}, **SYSTEM)[name] == "Be brief."
    assert prepare(path, {name: ""}, **SYSTEM)[name] == ""
    assert name not in prepare(path, {})
    # A conversation of Anthropic's is left alone.
    if path == MESSAGES:
        assert prepare(path, {"messages": [USER]}, **SYSTEM)["messages"] == [USER]


# Items of a response's input:


def text(words: str, kind: str = "output_text") -> dict[str, Any]:
    return {"type": kind, "text": words}


def test_the_parts_of_an_earlier_answer_and_of_a_tools_output_become_one_text(
    prepare: Prepare,
) -> None:
    parts = [text("a"), text("b", "input_text"), {"type": "refusal", "refusal": "c"}]
    item = {"type": "message", "role": "assistant", "id": "m", "content": parts}
    output = {"type": "function_call_output", "call_id": "c", "output": [text("4"), text("2")]}
    joined = {"type": "output_text", "text": "abc", "annotations": []}
    asked = prepare(RESPONSES, {"input": [item, output]})["input"]
    assert asked == [{**item, "content": [joined]}, {**output, "output": "42"}]


IMAGE = {"type": "input_image", "image_url": "data:,"}


def test_other_inputs_go_to_vllm_as_they_are(prepare: Prepare) -> None:
    items = [
        "Hi",
        {"role": "user", "content": [text("Hi", "input_text")]},
        {"role": "assistant", "content": "Ho"},
        {"role": "assistant", "content": [text("a"), IMAGE]},
        {"role": "assistant", "content": [text("a"), "b"]},
        {"type": "function_call_output", "output": "42"},
        {"type": "function_call_output", "output": [IMAGE]},
        {"type": "reasoning", "output": [text("a")]},
    ]
    for asked in ("Hi", items):
        assert prepare(RESPONSES, {"input": asked})["input"] == asked


FILE = [text("a", "input_text"), {"type": "input_file"}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": {"role": "user"}}, "input: Input should be a valid string or list"),
        ({"input": [{"role": "user", "content": FILE}]}, "input: this worker takes no files"),
        ({"input": [{"role": "user", "output": FILE}]}, "input: this worker takes no files"),
        ({"tools": 5}, "tools: Input should be a valid list"),
        ({"background": True}, "background: this worker stores no responses"),
    ],
    ids=repr,
)
def test_bad_responses_are_refused(prepare: Prepare, body: dict[str, Any], message: str) -> None:
    error, param = refusal(prepare, RESPONSES, body)
    assert error.startswith(message)
    assert param in body


def test_a_response_is_numbered_for_its_job(prepare: Prepare) -> None:
    assert prepare(RESPONSES, {})["request_id"] == "resp_job-1"
    assert "request_id" not in prepare(CHAT, {})


# Unknown keys:


def test_unknown_keys_are_logged_once(prepare: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert prepare(COMPLETIONS, {"nonsense": 1, "x" * 1000: 1, "my text": 1})["nonsense"] == 1
    names = ("a key", "'nonsense'", repr("x" * 64))
    unknown = [f"{name} is no parameter of {COMPLETIONS}" for name in names]
    assert caplog.messages == [f"request job-1: {message}: no effect" for message in unknown]
    # Callers can invent any number.
    prepare(COMPLETIONS, {f"name{number}": 1 for number in range(120)})
    assert len(caplog.messages) == 100


def test_strictly_an_unknown_key_is_refused_with_the_nearest_name(prepare: Prepare) -> None:
    body = {"prompt": "", "zzz": 1, "max_token": 1}
    message = "unknown key 'max_token': did you mean 'max_tokens'?"
    assert refusal(prepare, COMPLETIONS, body, STRICT_REQUESTS="1") == (message, "max_token")


def test_keys_that_the_worker_adds_are_known(prepare: Prepare) -> None:
    for path in (CHAT, COMPLETIONS, MESSAGES, RESPONSES, TOKENIZE):
        assert prepare(path, {}, **SYSTEM, STRICT_REQUESTS="1")["model"] == "demo"


# Anthropic's budget for reasoning, where the model's reasoning is not told from its answer:


def test_a_budget_is_dropped_and_logged_unless_the_model_reasons_or_requests_are_strict(
    prepare: Prepare, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.bodies = {MESSAGES: frozenset({"model", "thinking"})}
    budget = {"type": "enabled", "budget_tokens": 1024}
    assert "thinking" not in prepare(MESSAGES, {"thinking": budget})
    no_effect = "'thinking' is no parameter of /v1/messages: no effect"
    assert caplog.messages == [f"request job-1: {no_effect}"]
    # vLLM judges everything else.
    for other in ({"type": "adaptive"}, {"type": "disabled"}, "enabled", 5):
        assert prepare(MESSAGES, {"thinking": other})["thinking"] == other
    strictly = prepare(MESSAGES, {"thinking": budget}, STRICT_REQUESTS="1")
    engine.model = replace(engine.model, reasons=True)
    assert strictly["thinking"] == prepare(MESSAGES, {"thinking": budget})["thinking"] == budget
