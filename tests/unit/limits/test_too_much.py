"""Small requests that would keep the engine or its event loop busy for long are refused."""

from dataclasses import replace
from typing import Any

import pytest
from support.engine.answers import job_error, run_job
from support.engine.scripted import ScriptedEngine, tokens, yields_of
from support.engine.server import CHAT

TURN = {"role": "user", "content": "Hi"}


def raw(**params: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "sampling_params": params}


def body(**fields: Any) -> dict[str, Any]:
    return {"openai_route": CHAT, "openai_input": {"messages": [TURN], **fields}}


@pytest.mark.parametrize(
    "params",
    [
        [{"max_tokens": 5}, {"logit_bias": {"5": 101}}],
        [{"max_tokens": 5}, {"n": 256, "logprobs": 20}],
    ],
)
async def test_an_item_of_a_list_above_a_limit_fails_alone(params: list[dict[str, Any]]) -> None:
    payload = {"prompts": ["a", "b"], "sampling_params": params}
    ((right, wrong),) = [chunk["outputs"] for chunk in await run_job(payload, *tokens("a"))]
    assert "choices" in right
    assert wrong["error"]["code"] == 400


# Values for chat templates:


@pytest.mark.parametrize(
    "key", ["tokenizer", "model_config", "tokenize", "max_length", "strftime_now"]
)
async def test_names_of_vllms_own_template_values_are_refused_on_both_paths(key: str) -> None:
    fields = {"chat_template_kwargs": {"custom-1": 1, key: 1}}
    for job in ({"messages": [TURN], **fields}, body(**fields)):
        error = await job_error(job)
        assert (error["code"], error["param"]) == (400, f"chat_template_kwargs.{key}")
        assert error["message"].endswith("not allowed in a request: vLLM sets it itself")


# Features that the operator must enable:


async def test_arguments_for_plugins_need_the_operators_permission() -> None:
    job = body(vllm_xargs={"its": "x", "mine": 1})
    for allowed, wrong in (("", "its"), ("its", "mine")):
        error = await job_error(job, ALLOWED_XARGS=allowed)
        assert (error["code"], error["param"]) == (400, f"vllm_xargs.{wrong}")
    assert "error" not in (await run_job(job, *tokens("a"), ALLOWED_XARGS="mine,its"))[-1]


@pytest.mark.parametrize(("key", "value"), [("priority", -5), ("request_id", "mine")])
async def test_keys_without_an_effect_are_dropped_unless_the_worker_is_strict(
    key: str, value: Any
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        assert "error" not in (await yields_of(engine, body(**{key: value})))[-1]
        (sent,) = engine.requests
        assert isinstance(sent, dict)
        assert sent.get(key) != value
    error = await job_error(body(**{key: value}), STRICT_REQUESTS="1")
    assert (error["code"], error["param"]) == (400, key)


async def test_a_priority_reaches_an_engine_that_has_priorities() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        engine.model = replace(engine.model, has_priorities=True)
        assert "error" not in (await yields_of(engine, body(priority=-5)))[-1]
        (sent,) = engine.requests
        assert isinstance(sent, dict)
        assert sent["priority"] == -5
