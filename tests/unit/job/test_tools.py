"""Tools, names of functions and values for chat templates: bounded on both paths."""

from dataclasses import replace
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, failure, tokens, yields_of

from worker.errors import InvalidInput
from worker.job.tools import check_tools

LONG = "/a" * 10_000
TURN = {"role": "user", "content": "Hi"}


def tool(name: Any = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


WRONG = [
    ({"tools": [tool()] * 129}, "tools", "129 of them, at most 128"),
    ({"tools": [tool(), tool(LONG)]}, "tools.1.function.name", "20,000 characters; 1 to 64"),
    ({"tools": [tool("a b")]}, "tools.0.function.name", "letters, digits and ._-"),
    ({"tools": [tool("a" * 65)]}, "tools.0.function.name", "65 characters"),
    ({"tools": [tool("")]}, "tools.0.function.name", "0 characters"),
    (
        {"messages": [TURN, {"role": "assistant", "tool_calls": [tool(LONG)]}]},
        "messages.1.tool_calls.0.function.name",
        "20,000 characters",
    ),
    (
        {"messages": [{"role": "assistant", "function_call": {"name": LONG}}]},
        "messages.0.function_call.name",
        "20,000 characters",
    ),
    ({"chat_template_kwargs": {f"a{n}": 1 for n in range(33)}}, None, "33 keys, at most 32"),
    ({"chat_template_kwargs": {"a" * 65: 1}}, None, "at most 64 letters"),
    ({"chat_template_kwargs": {"a-b": 1}}, None, "at most 64 letters"),
    ({"chat_template_kwargs": {"tokenizer": 1}}, "chat_template_kwargs.tokenizer", "sets it"),
    ({"chat_template_kwargs": {"model_config": 1}}, "chat_template_kwargs.model_config", "sets"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize", "sets"),
    ({"chat_template_kwargs": {"max_length": 1}}, "chat_template_kwargs.max_length", "sets"),
    ({"chat_template_kwargs": {"strftime_now": 1}}, "chat_template_kwargs.strftime_now", "sets"),
]
# In bodies of one API or another.
WRONG_BODIES = [
    ({"tools": [{"name": LONG}]}, "tools.0.name"),
    ({"functions": [{"name": LONG}]}, "functions.0.name"),
    ({"tool_choice": tool(LONG)}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "tool", "name": LONG}}, "tool_choice.name"),
    ({"tool_choice": {"tools": [{"name": LONG}]}}, "tool_choice.tools.0.name"),
    ({"function_call": {"name": LONG}}, "function_call.name"),
    ({"input": [{"type": "function_call", "name": LONG}]}, "input.0.name"),
    (
        {"messages": [{"content": [{"type": "text"}, {"type": "tool_use", "name": LONG}]}]},
        "messages.0.content.1.name",
    ),
]


@pytest.mark.parametrize(("fields", "param", "message"), WRONG)
async def test_what_is_above_its_bound_is_refused_on_both_paths(
    fields: dict[str, Any], param: str | None, message: str
) -> None:
    fields = {"messages": [TURN], **fields}
    for job in (fields, {"openai_route": CHAT, "openai_input": fields}):
        with ScriptedEngine(*tokens("a")) as engine:
            error = failure(await yields_of(engine, job))
        assert (error["code"], engine.asked) == (400, [])
        assert error["param"] == (param or "chat_template_kwargs")
        assert message in error["message"]
        assert len(error["message"]) < 300


@pytest.mark.parametrize(("body", "param"), WRONG_BODIES)
def test_a_name_is_found_wherever_an_api_has_it(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput, match="20,000 characters") as caught:
        check_tools(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [tool("mcp.server-1_do")] * 128, "tool_choice": tool("größe")},
        {"tools": [{"type": "web_search"}], "tool_choice": "auto"},
        {"messages": [{"role": "user", "name": "Ada Lovelace, of London", "content": "Hi"}]},
        {"chat_template_kwargs": {"enable_thinking": False, "custom_1": {"a-b": 1}}},
        {"tools": 5, "messages": "Hi", "chat_template_kwargs": [], "input": [5], "tool_choice": 5},
        {"tools": [tool(5)]},
    ],
)
def test_what_is_common_or_vllms_to_refuse_is_left_alone(body: dict[str, Any]) -> None:
    check_tools(body)


async def test_arguments_for_plugins_are_for_the_operator_to_allow() -> None:
    body = {"messages": [TURN], "vllm_xargs": {"its": "x", "mine": 1}}
    job = {"openai_route": CHAT, "openai_input": body}
    with ScriptedEngine(*tokens("a")) as engine:
        for allowed, refused in (("", "its"), ("its", "mine")):
            error = failure(await yields_of(engine, job, ALLOWED_XARGS=allowed))
            assert (error["code"], error["param"]) == (400, f"vllm_xargs.{refused}")
        assert engine.asked == []
        chunks = await yields_of(engine, job, ALLOWED_XARGS="mine,its")
        assert "error" not in chunks[-1]


async def test_a_priority_is_heeded_or_refused() -> None:
    job = {"openai_route": CHAT, "openai_input": {"messages": [TURN], "priority": -5}}
    with ScriptedEngine(*tokens("a")) as engine:
        error = failure(await yields_of(engine, job))
        assert (error["code"], error["param"]) == (400, "priority")
        engine.model = replace(engine.model, by_priority=True)
        assert "error" not in (await yields_of(engine, job))[-1]
