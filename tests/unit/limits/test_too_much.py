"""Small requests that would keep the engine or its event loop busy for long are refused."""

from dataclasses import replace
from typing import Any

import pytest
from support.engine.answers import job_error, run_job
from support.engine.scripted import ScriptedEngine, tokens, yields_of
from support.engine.server import CHAT
from support.engine.yields import failure

from worker.errors import InvalidInput
from worker.limits.tools import check_tools

TURN = {"role": "user", "content": "Hi"}
LONG = "/a" * 10_000


def raw(**params: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "sampling_params": params}


def body(**fields: Any) -> dict[str, Any]:
    return {"openai_route": CHAT, "openai_input": {"messages": [TURN], **fields}}


# Structured outputs (test_structured covers the limits of each kind):


async def test_a_structured_output_above_a_limit_is_refused_on_both_paths() -> None:
    structured = {"regex": "a" * 10_001}
    for job in (raw(structured_outputs=structured), body(structured_outputs=structured)):
        error = await job_error(job)
        assert error["code"] == 400
        assert "at most 10,000 characters" in error["message"]


@pytest.mark.parametrize(
    "params",
    [
        [{"guided_regex": "a"}, {"guided_regex": "a" * 10_001}],
        [{"max_tokens": 5}, {"n": 256, "logprobs": 20}],
    ],
)
async def test_an_item_of_a_list_above_a_limit_fails_alone(params: list[dict[str, Any]]) -> None:
    payload = {"prompts": ["a", "b"], "sampling_params": params}
    ((right, wrong),) = [chunk["outputs"] for chunk in await run_job(payload, *tokens("a"))]
    assert "choices" in right
    assert wrong["error"]["code"] == 400


# Lists:


async def test_a_long_list_is_refused_with_its_length() -> None:
    error = await job_error(body(messages=[{"role": "user", "content": [{}] * 2_049}]))
    assert (error["code"], error["message"]) == (400, "messages: 2,049 items, at most 2,048")


# Tools, names of functions and values for chat templates:


def tool(name: Any = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


NAME_MESSAGE = "{} characters; 1 to 64 letters, digits and ._- are a name".format
KEY_MESSAGE = "a key is a name of at most 64 letters, digits and _"
KWARGS = "chat_template_kwargs"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [tool()] * 129}, "tools", "129 of them, at most 128"),
        *(
            ({"tools": [tool(), tool(name)]}, "tools.1.function.name", NAME_MESSAGE(size))
            for name, size in ((LONG, "20,000"), ("a b", 3), ("a" * 65, 65), ("", 0))
        ),
        ({KWARGS: {f"a{number}": 1 for number in range(33)}}, KWARGS, "33 keys, at most 32"),
        *(({KWARGS: {key: 1}}, KWARGS, KEY_MESSAGE) for key in ("a" * 65, "a-b")),
        *(
            ({KWARGS: {key: 1}}, f"{KWARGS}.{key}", "not allowed in a request: vLLM sets it itself")
            for key in ("tokenizer", "model_config", "tokenize", "max_length", "strftime_now")
        ),
    ],
)
async def test_tools_and_template_values_have_limits_on_both_paths(
    fields: dict[str, Any], param: str, message: str
) -> None:
    for job in ({"messages": [TURN], **fields}, body(**fields)):
        error = await job_error(job)
        assert (error["code"], error["param"]) == (400, param)
        assert error["message"] == f"{param}: {message}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"name": LONG}]}, "tools.0.name"),
        ({"functions": [{"name": LONG}]}, "functions.0.name"),
        ({"tool_choice": tool(LONG)}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "tool", "name": LONG}}, "tool_choice.name"),
        ({"tool_choice": {"tools": [{"name": LONG}]}}, "tool_choice.tools.0.name"),
        ({"function_call": {"name": LONG}}, "function_call.name"),
        ({"input": [{"type": "function_call", "name": LONG}]}, "input.0.name"),
        ({"messages": [{"tool_calls": [tool(LONG)]}]}, "messages.0.tool_calls.0.function.name"),
        ({"messages": [{"function_call": {"name": LONG}}]}, "messages.0.function_call.name"),
        (
            {"messages": [{"content": [{"type": "tool_use", "name": LONG}]}]},
            "messages.0.content.0.name",
        ),
    ],
)
def test_a_tool_name_is_checked_wherever_an_api_allows_it(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidInput, match="20,000 characters") as caught:
        check_tools(fields)
    assert caught.value.param == param


def test_common_values_and_values_that_vllm_refuses_are_accepted() -> None:
    bodies: list[dict[str, Any]] = [
        {"tools": [tool("mcp.server-1_do")] * 128, "tool_choice": tool("größe")},
        {"tools": [{"type": "web_search"}], "tool_choice": "auto"},
        {"messages": [{"role": "user", "name": "Ada Lovelace, of London", "content": "Hi"}]},
        {"chat_template_kwargs": {"enable_thinking": False, "custom_1": {"a-b": 1}}},
        {"tools": 5, "messages": "Hi", "chat_template_kwargs": [], "input": [5], "tool_choice": 5},
        {"tools": [tool(5)]},
    ]
    for fields in bodies:
        check_tools(fields)


# Features that the operator must enable:


async def test_arguments_for_plugins_need_the_operators_permission() -> None:
    job = body(vllm_xargs={"its": "x", "mine": 1})
    for allowed, wrong in (("", "its"), ("its", "mine")):
        error = await job_error(job, ALLOWED_XARGS=allowed)
        assert (error["code"], error["param"]) == (400, f"vllm_xargs.{wrong}")
    assert "error" not in (await run_job(job, *tokens("a"), ALLOWED_XARGS="mine,its"))[-1]


async def test_a_priority_is_refused_unless_the_engine_has_priorities() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        error = failure(await yields_of(engine, body(priority=-5)))
        assert (error["code"], error["param"]) == (400, "priority")
        engine.model = replace(engine.model, has_priorities=True)
        assert "error" not in (await yields_of(engine, body(priority=-5)))[-1]
