"""Request bodies as vLLM's server gets them: models, conversations, unknown keys."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, settings

from worker.dialects.openai import forward
from worker.dialects.table import ROUTES
from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.job.sampling_params import BEAM_SEARCH_IGNORED, BEAM_SEARCH_NEEDED
from worker.routes.route import Route

COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
TOKENIZE = "/tokenize"

SYSTEM = {"SYSTEM_PROMPT": "Be brief."}
BEAM = {"use_beam_search": True}
USER_TURN = {"role": "user", "content": "Hi"}
SYSTEM_TURN = {"role": "system", "content": "Be brief."}

PrepareBody = Callable[..., dict[str, Any]]


@pytest.fixture
def prepare_body(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> PrepareBody:
    """Return a function that turns a caller's body for a route into the body for vLLM's server."""
    monkeypatch.setattr(forward, "_logged_keys", set())

    def prepare(
        path: str, body: dict[str, Any], route: str | None = None, **environ: str
    ) -> dict[str, Any]:
        job = OpenAIJob(route=route or path, body=body)
        row = next((row for row in ROUTES if row.path == path), Route("POST", path))
        before = copy.deepcopy(body)
        sent, _ = forward.prepare_body(job, row, engine, "job-1", settings(**environ))
        assert body == before  # the caller's body stays unchanged
        return sent

    return prepare


def refusal(
    prepare_body: PrepareBody, path: str, body: Any, **environ: str
) -> tuple[str, str | None]:
    with pytest.raises(InvalidInput) as caught:
        prepare_body(path, body, **environ)
    return caught.value.message, caught.value.param


# Keys that callers may not send (tests/unit/media covers all of them):


def test_keys_that_callers_may_not_send_are_refused(prepare_body: PrepareBody) -> None:
    for path, body in itertools.product(
        (CHAT, TOKENIZE), ({"prompt_embeds": [1]}, {"chat_template_kwargs": {"prompt_embeds": [1]}})
    ):
        message, param = refusal(prepare_body, path, body)
        assert (message.partition(":")[0], param) == ("prompt_embeds", "prompt_embeds")


def test_empty_values_of_these_keys_and_of_the_model_count_as_absent(
    prepare_body: PrepareBody,
) -> None:
    body = {"prompt": "a", "mm_processor_kwargs": {}, "prompt_embeds": [], "model": ""}
    assert prepare_body(COMPLETIONS, body) == {"model": "demo", "prompt": "a"}


def test_null_counts_as_absent(prepare_body: PrepareBody) -> None:
    body: dict[str, Any] = {"prompt_embeds": None, "model": None, "echo": None, "prompt": [None]}
    assert prepare_body(COMPLETIONS, body) == {"model": "demo", "prompt": [None]}


# Conversations:


@pytest.mark.parametrize(("path", "route"), [(CHAT, "/chat/completions"), (TOKENIZE, "/tokenize")])
def test_a_string_becomes_a_user_message_after_the_system_prompt(
    prepare_body: PrepareBody, path: str, route: str
) -> None:
    for version in ("", "/v1"):
        assert prepare_body(path, {"messages": "Hi"}, version + route)["messages"] == [USER_TURN]
    for messages in ("Hi", [USER_TURN]):
        assert prepare_body(path, {"messages": messages}, **SYSTEM)["messages"] == [
            SYSTEM_TURN,
            USER_TURN,
        ]
    # vLLM refuses an empty conversation.
    assert prepare_body(path, {"messages": []})["messages"] == []


def test_a_message_needs_no_role_on_a_route_without_v1(prepare_body: PrepareBody) -> None:
    messages = [{"content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    unversioned = prepare_body(CHAT, {"messages": messages}, "chat/completions")
    assert unversioned["messages"] == [USER_TURN, messages[1]]
    assert prepare_body(CHAT, {"messages": messages})["messages"] == messages


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_callers_system_message_replaces_the_operators(
    prepare_body: PrepareBody, role: str
) -> None:
    messages = [USER_TURN, {"role": role, "content": "Be long."}]
    assert prepare_body(CHAT, {"messages": messages}, **SYSTEM)["messages"] == messages
    body = prepare_body(RESPONSES, {"input": messages}, **SYSTEM)
    assert (body["input"], "instructions" in body) == (messages, False)


def test_an_invalid_message_is_refused_by_its_place(prepare_body: PrepareBody) -> None:
    message = "messages.1: Input should be a valid dictionary"
    error = refusal(prepare_body, CHAT, {"messages": [USER_TURN, "Hi"]}, **SYSTEM)
    assert error == (message, "messages.1")


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
def test_a_continued_message_starts_no_turn(prepare_body: PrepareBody, path: str) -> None:
    body = {"messages": [USER_TURN], "continue_final_message": True}
    assert prepare_body(path, body)["add_generation_prompt"] is False
    # vLLM refuses both together.
    assert prepare_body(path, {**body, "add_generation_prompt": True})["add_generation_prompt"]
    for value in (False, "true", None):
        sent = prepare_body(path, {"messages": [USER_TURN], "continue_final_message": value})
        assert "add_generation_prompt" not in sent


PARTS = [{"type": "image", "image": "data:,"}]
CONVERTED_PARTS = [{"type": "image_url", "image_url": {"url": "data:,"}}]


@pytest.mark.parametrize("path", [CHAT, TOKENIZE, "/v1/embeddings", "/pooling"])
def test_a_conversation_is_converted_on_every_route(prepare_body: PrepareBody, path: str) -> None:
    turn, converted = ({**USER_TURN, "content": parts} for parts in (PARTS, CONVERTED_PARTS))
    assert prepare_body(path, {"messages": [turn]})["messages"] == [converted]
    if path in (CHAT, TOKENIZE):
        return
    for key in ("messages", "input"):
        assert prepare_body(path, {key: [[turn], [turn]]})[key] == [[converted], [converted]]
        with pytest.raises(InvalidInput, match=rf"^{key}\.1\.0\.content: "):
            prepare_body(path, {key: [[turn], [{**turn, "content": 5}]]}, **SYSTEM)
    assert prepare_body(path, {"input": [turn]}, **SYSTEM)["input"] == [converted]
    for texts in ("Hi", ["Hi"], [1, 2], [[1, 2]], [], 5):
        assert prepare_body(path, {"input": texts})["input"] == texts


def test_a_prompt_gets_no_system_message(prepare_body: PrepareBody) -> None:
    body = prepare_body(TOKENIZE, {"prompt": "Hi", "messages": None}, **SYSTEM)
    assert body == {"prompt": "Hi", "model": "demo"}


@pytest.mark.parametrize(
    ("path", "name"), [(RESPONSES, "instructions"), (MESSAGES, "system"), (COUNT, "system")]
)
def test_the_system_prompt_fills_the_key_of_the_route(
    prepare_body: PrepareBody, path: str, name: str
) -> None:
    assert prepare_body(path, {name: None}, **SYSTEM)[name] == "Be brief."
    assert prepare_body(path, {name: ""}, **SYSTEM)[name] == ""
    assert name not in prepare_body(path, {})
    # The messages of Anthropic's dialect stay unchanged.
    if path == MESSAGES:
        assert prepare_body(path, {"messages": [USER_TURN]}, **SYSTEM)["messages"] == [USER_TURN]


FILE = [{"type": "input_text", "text": "a"}, {"type": "input_file"}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": {"role": "user"}}, "input: Input should be a valid string or list"),
        ({"input": [{"role": "user", "content": FILE}]}, "input: this worker accepts no files"),
        ({"input": [{"role": "user", "output": FILE}]}, "input: this worker accepts no files"),
        ({"tools": 5}, "tools: Input should be a valid list"),
        ({"background": True}, "background: this worker stores no responses"),
        ({"conversation": "conv_a"}, "conversation: this worker stores no conversations"),
        ({"prompt": {"id": "pmpt_a"}}, "prompt: this worker stores no prompts"),
        ({"tools": [{"type": "web_search"}]}, "tools: this worker runs no tools such as 'web_sear"),
    ],
    ids=repr,
)
def test_invalid_requests_for_responses_are_refused(
    prepare_body: PrepareBody, body: dict[str, Any], message: str
) -> None:
    error, param = refusal(prepare_body, RESPONSES, body)
    assert error.startswith(message)
    assert param in body


def test_the_id_of_a_response_contains_the_job_id(prepare_body: PrepareBody) -> None:
    assert prepare_body(RESPONSES, {})["request_id"] == "resp_job-1"
    assert "request_id" not in prepare_body(CHAT, {})


# Unknown keys:


def test_unknown_keys_are_logged_once(
    prepare_body: PrepareBody, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert (
            prepare_body(COMPLETIONS, {"nonsense": 1, "x" * 1000: 1, "my text": 1})["nonsense"] == 1
        )
    names = ("a key", "'nonsense'", repr("x" * 64))
    unknown = [f"{name} has no effect on {COMPLETIONS}" for name in names]
    assert caplog.messages == [f"request job-1: {message}" for message in unknown]
    # At most 100 keys are logged, because callers can invent any number.
    prepare_body(COMPLETIONS, {f"name{number}": 1 for number in range(120)})
    assert len(caplog.messages) == 100


def test_strict_requests_refuse_an_unknown_key_with_the_nearest_name(
    prepare_body: PrepareBody,
) -> None:
    body = {"prompt": "", "zzz": 1, "max_token": 1}
    message = "unknown key 'max_token': did you mean 'max_tokens'?"
    assert refusal(prepare_body, COMPLETIONS, body, STRICT_REQUESTS="1") == (message, "max_token")


NO_PRIORITIES = "requests are answered in their order: SCHEDULING_POLICY=priority"


@pytest.mark.parametrize(
    ("name", "value", "others", "reason"),
    [
        ("length_penalty", 1.2, {}, BEAM_SEARCH_NEEDED),
        ("early_stopping", "never", {}, BEAM_SEARCH_NEEDED),
        *((name, 1, BEAM, BEAM_SEARCH_IGNORED) for name in ("top_k", "seed", "min_tokens")),
        ("stop", ["a"], BEAM, BEAM_SEARCH_IGNORED),
        ("request_id", "mine", {}, "it is the job's id"),
        ("priority", -5, {}, NO_PRIORITIES),
    ],
)
def test_parameters_without_effect_are_logged_or_refused_by_a_strict_worker(
    prepare_body: PrepareBody,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: Any,
    others: dict[str, Any],
    reason: str,
) -> None:
    body = {"prompt": "", name: value, **others}
    error = refusal(prepare_body, COMPLETIONS, body, STRICT_REQUESTS="1")
    assert error == (f"{name}: {reason}", name)
    sent = prepare_body(COMPLETIONS, body)
    assert caplog.messages[0] == f"request job-1: {name!r} has no effect on {COMPLETIONS}"
    assert name not in sent or name not in ("request_id", "priority")


def test_strict_requests_accept_the_keys_that_the_worker_adds(prepare_body: PrepareBody) -> None:
    for path in (CHAT, COMPLETIONS, MESSAGES, RESPONSES, TOKENIZE):
        assert prepare_body(path, {}, **SYSTEM, STRICT_REQUESTS="1")["model"] == "demo"


# Tools that the servers of OpenAI and Anthropic run:

FUNCTIONS: dict[str, list[dict[str, Any]]] = {
    RESPONSES: [{"type": kind, "name": "f"} for kind in ("function", "custom", "namespace")],
    MESSAGES: [
        {"name": "f", "input_schema": {}},
        {"type": None, "name": "f"},
        {"type": "custom", "name": "f"},
    ],
}


@pytest.mark.parametrize("path", FUNCTIONS)
def test_hosted_tools_together_with_functions_are_dropped_and_logged(
    prepare_body: PrepareBody, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    body = {"tools": [hosted, *FUNCTIONS[path]]}
    assert prepare_body(path, body)["tools"] == FUNCTIONS[path]
    assert caplog.messages[0] == f"request job-1: 'web_search_20250305' has no effect on {path}"
    message, param = refusal(prepare_body, path, body, STRICT_REQUESTS="1")
    assert ("no tools such as 'web_search_20250305'" in message, param) == (True, "tools")


def test_hosted_tools_are_passed_on_with_a_tool_server(
    prepare_body: PrepareBody, engine: ScriptedEngine
) -> None:
    engine.model = replace(engine.model, has_tool_server=True)
    body = {"tools": [{"type": "web_search_preview"}]}
    assert prepare_body(RESPONSES, body)["tools"] == body["tools"]


# Anthropic's budget for reasoning:


def test_a_reasoning_budget_without_effect_is_dropped_and_logged(
    prepare_body: PrepareBody, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.bodies = {MESSAGES: frozenset({"model", "thinking"})}
    budget = {"type": "enabled", "budget_tokens": 1024}
    assert "thinking" not in prepare_body(MESSAGES, {"thinking": budget})
    no_effect = "'thinking' has no effect on /v1/messages"
    assert caplog.messages == [f"request job-1: {no_effect}"]
    # vLLM checks all other values.
    for other in ({"type": "adaptive"}, {"type": "disabled"}, "enabled", 5):
        assert prepare_body(MESSAGES, {"thinking": other})["thinking"] == other
    strict_body = prepare_body(MESSAGES, {"thinking": budget}, STRICT_REQUESTS="1")
    engine.model = replace(engine.model, has_reasoning=True)
    assert (
        strict_body["thinking"]
        == prepare_body(MESSAGES, {"thinking": budget})["thinking"]
        == budget
    )
