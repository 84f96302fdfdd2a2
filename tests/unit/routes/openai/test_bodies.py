"""Request bodies as vLLM's server gets them: models, conversations, unknown keys."""

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, settings

from worker.engine import Model
from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.media.walker import DENIED
from worker.routes.openai import ROUTES, bodies
from worker.routes.openai.bodies import Prepared
from worker.routes.openai.route import Route

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
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


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


# Models, and keys that callers may not send:


@pytest.mark.parametrize("body", [{}, {"model": None}])
def test_a_request_without_a_model_is_for_the_served_model(
    prepare: Prepare, engine: ScriptedEngine, body: dict[str, Any]
) -> None:
    engine.model = Model(("first", "second"), 1, "cpu", frozenset({"generate"}))
    assert prepare(COMPLETIONS, body)["model"] == "first"


@pytest.mark.parametrize("name", ["other", "", 5])
def test_vllm_finds_the_model_that_a_request_names(prepare: Prepare, name: Any) -> None:
    assert prepare(COMPLETIONS, {"model": name})["model"] == name


@pytest.mark.parametrize("name", sorted(DENIED))
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, TOKENIZE])
def test_keys_that_callers_may_not_send_are_refused(prepare: Prepare, path: str, name: str) -> None:
    bodies_with_it: list[dict[str, Any]] = [{name: {}}, {"chat_template_kwargs": {name: False}}]
    for body in bodies_with_it:
        with pytest.raises(InvalidInput) as caught:
            prepare(path, body)
        message = f"{name}: not in a request: {DENIED[name]}"
        assert (caught.value.message, caught.value.param) == (message, name)


def test_null_counts_as_absent(prepare: Prepare) -> None:
    body: dict[str, Any] = {"prompt_embeds": None, "model": None, "echo": None, "prompt": [None]}
    assert prepare(COMPLETIONS, body) == {"model": "demo", "prompt": [None]}


def test_values_for_the_chat_template_may_have_other_names(prepare: Prepare) -> None:
    nested = {"enable_thinking": False, "model": None}
    assert prepare(CHAT, {"chat_template_kwargs": nested})["chat_template_kwargs"] == nested


def test_vllm_refuses_a_value_that_should_be_an_object(prepare: Prepare) -> None:
    body = {"chat_template_kwargs": ["prompt_embeds"]}
    assert prepare(CHAT, body)["chat_template_kwargs"] == ["prompt_embeds"]


# Conversations:


@pytest.mark.parametrize(("path", "route"), [(CHAT, "/chat/completions"), (TOKENIZE, "/tokenize")])
def test_a_text_is_a_conversation_of_one_message(prepare: Prepare, path: str, route: str) -> None:
    assert prepare(path, {"messages": "Hi"}, route)["messages"] == [USER]
    assert prepare(path, {"messages": "Hi"}, "/v1" + route)["messages"] == [USER]


def test_a_message_may_do_without_a_role_where_the_route_has_no_version(prepare: Prepare) -> None:
    messages = [{"content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    assert prepare(CHAT, {"messages": messages}, "chat/completions")["messages"] == [
        USER,
        messages[1],
    ]
    assert prepare(CHAT, {"messages": messages})["messages"] == messages


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
def test_the_operators_words_stand_first(prepare: Prepare, path: str) -> None:
    assert prepare(path, {"messages": [USER]}, **SYSTEM)["messages"] == [OPENED, USER]
    assert prepare(path, {"messages": "Hi"}, **SYSTEM)["messages"] == [OPENED, USER]
    assert prepare(path, {"messages": [USER]})["messages"] == [USER]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_callers_own_words_of_that_kind_win(prepare: Prepare, role: str) -> None:
    messages = [USER, {"role": role, "content": "Be long."}]
    assert prepare(CHAT, {"messages": messages}, **SYSTEM)["messages"] == messages


@pytest.mark.parametrize(
    ("messages", "place", "kind"),
    [
        (5, "messages", "list"),
        (True, "messages", "list"),
        ({"role": "user"}, "messages", "list"),
        ([USER, "Hi"], "messages.1", "dictionary"),
        ([None], "messages.0", "dictionary"),
        ([USER, {**USER, "tool_calls": 5}], "messages.1.tool_calls", "list"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
def test_invalid_messages_are_refused(
    prepare: Prepare, path: str, messages: Any, place: str, kind: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        prepare(path, {"messages": messages}, **SYSTEM)
    message = f"{place}: Input should be a valid {kind}"
    assert (caught.value.message, caught.value.param) == (message, place)


def test_vllm_refuses_an_empty_conversation(prepare: Prepare) -> None:
    assert prepare(CHAT, {"messages": []})["messages"] == []
    assert prepare(CHAT, {"messages": []}, **SYSTEM)["messages"] == [OPENED]


def test_a_prompt_is_not_a_conversation(prepare: Prepare) -> None:
    asked = prepare(TOKENIZE, {"prompt": "Hi", "messages": None}, **SYSTEM)
    assert asked == {"prompt": "Hi", "model": "demo"}
    assert prepare(COMPLETIONS, {"prompt": "Hi"}, **SYSTEM) == {"prompt": "Hi", "model": "demo"}


@pytest.mark.parametrize(
    ("path", "name"), [(RESPONSES, "instructions"), (MESSAGES, "system"), (COUNT, "system")]
)
def test_where_the_operators_words_have_a_key_of_their_own_they_fill_it(
    prepare: Prepare, path: str, name: str
) -> None:
    assert prepare(path, {}, **SYSTEM)[name] == "Be brief."
    assert prepare(path, {name: None}, **SYSTEM)[name] == "Be brief."
    assert prepare(path, {name: ""}, **SYSTEM)[name] == ""
    assert name not in prepare(path, {})


def test_a_conversation_of_anthropics_is_left_alone(prepare: Prepare) -> None:
    assert prepare(MESSAGES, {"messages": [USER]}, "/messages", **SYSTEM)["messages"] == [USER]


# Items of a response's input:


def text(words: str, kind: str = "output_text") -> dict[str, Any]:
    return {"type": kind, "text": words}


def test_the_parts_of_an_earlier_answer_become_one_text(prepare: Prepare) -> None:
    parts = [text("a"), text("b", "input_text"), {"type": "refusal", "refusal": "c"}]
    item = {"type": "message", "role": "assistant", "id": "m", "content": parts}
    joined = {"type": "output_text", "text": "abc", "annotations": []}
    (asked,) = prepare(RESPONSES, {"input": [item]})["input"]
    assert asked == {**item, "content": [joined]}


def test_the_parts_of_a_tools_output_become_one_text(prepare: Prepare) -> None:
    item = {"type": "function_call_output", "call_id": "c", "output": [text("4"), text("2")]}
    (asked,) = prepare(RESPONSES, {"input": [item]})["input"]
    assert asked == {**item, "output": "42"}


@pytest.mark.parametrize(
    "item",
    [
        "Hi",
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": [text("Hi", "input_text")]},
        {"role": "assistant", "content": "Ho"},
        {
            "role": "assistant",
            "content": [text("a"), {"type": "input_image", "image_url": "data:,"}],
        },
        {"role": "assistant", "content": [text("a"), "b"]},
        {"type": "function_call_output", "output": "42"},
        {
            "type": "function_call_output",
            "output": [{"type": "input_image", "image_url": "data:,"}],
        },
        {"type": "reasoning", "output": [text("a")]},
    ],
    ids=repr,
)
def test_other_items_go_to_vllm_as_they_are(prepare: Prepare, item: Any) -> None:
    assert prepare(RESPONSES, {"input": [item]})["input"] == [item]


@pytest.mark.parametrize("wrong", [5, True, {}, {"role": "user"}], ids=repr)
def test_an_input_is_a_text_or_a_list(prepare: Prepare, wrong: Any) -> None:
    with pytest.raises(
        InvalidInput, match="input: Input should be a valid string or list"
    ) as caught:
        prepare(RESPONSES, {"input": wrong})
    assert caught.value.param == "input"


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [("tools", 5, "Input should be a valid list"), ("background", True, "stores no responses")],
)
def test_a_response_has_its_tools_in_a_list_and_is_not_fetched_later(
    prepare: Prepare, name: str, wrong: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=f"{name}: .*{message}") as caught:
        prepare(RESPONSES, {name: wrong})
    assert caught.value.param == name


def test_an_input_of_one_text_stays_one(prepare: Prepare) -> None:
    assert prepare(RESPONSES, {"input": "Hi"})["input"] == "Hi"


@pytest.mark.parametrize("key", ["content", "output"])
def test_a_file_in_an_input_is_refused(prepare: Prepare, key: str) -> None:
    item = {"role": "user", key: [text("a", "input_text"), {"type": "input_file"}]}
    with pytest.raises(InvalidInput, match="takes no files: send their text") as caught:
        prepare(RESPONSES, {"input": [item]})
    assert caught.value.param == "input"


def test_a_response_is_numbered_for_its_job(prepare: Prepare) -> None:
    assert prepare(RESPONSES, {})["request_id"] == "resp_job-1"
    assert "request_id" not in prepare(CHAT, {})


# Unknown keys:


def test_unknown_keys_are_passed_on_and_logged_once(
    prepare: Prepare, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert prepare(COMPLETIONS, {"nonsense": 1, "echo": False})["nonsense"] == 1
    assert caplog.messages == [
        "request job-1: 'nonsense' is no parameter of /v1/completions: no effect"
    ]


def test_only_the_beginning_of_a_long_name_is_logged(
    prepare: Prepare, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(COMPLETIONS, {"x" * 1000: 1})
    assert f"'{'x' * 64}' is no" in caplog.text


def test_no_more_than_a_hundred_names_are_logged(
    prepare: Prepare, caplog: pytest.LogCaptureFixture
) -> None:
    for start in (0, 60):
        prepare(COMPLETIONS, {f"name{number}": 1 for number in range(start, start + 60)})
    assert len(caplog.messages) == 100


def test_where_requests_are_strict_an_unknown_key_is_refused_with_the_nearest_name(
    prepare: Prepare,
) -> None:
    with pytest.raises(InvalidInput) as caught:
        prepare(COMPLETIONS, {"prompt": "", "zzz": 1, "max_token": 1}, STRICT_REQUESTS="1")
    message = "unknown key 'max_token': did you mean 'max_tokens'?"
    assert (caught.value.message, caught.value.param) == (message, "max_token")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES, TOKENIZE, "/elsewhere"])
def test_keys_that_the_worker_adds_are_known(prepare: Prepare, path: str) -> None:
    environ = {**SYSTEM, "STRICT_REQUESTS": "1"}
    if path == "/elsewhere":
        with pytest.raises(InvalidInput, match="unknown key 'model'"):
            prepare(path, {}, **environ)
    else:
        assert prepare(path, {}, **environ)["model"] == "demo"


def test_without_a_ranking_an_answer_stays_as_it_is() -> None:
    answer = {"choices": [1]}
    assert Prepared(None).best(answer) is answer
