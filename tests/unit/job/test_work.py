"""The product of prompts, choices, tokens and log probabilities, before any of it is computed."""

from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, failure, tokens, yields_of

MESSAGES = [{"role": "user", "content": "Hi"}]
TOO_MUCH: list[tuple[dict[str, Any], int]] = [
    ({"n": 256, "logprobs": 20, "max_tokens": 60}, 400),
    ({"n": 2, "best_of": 256, "logprobs": 20}, 400),
    # The token itself counts, too: 64 times 17.
    ({"n": 64, "logprobs": 16}, 400),
    # It can't fit, or only if nearly all choices end early.
    ({"logprobs": 20, "min_tokens": 1_200}, 413),
    ({"n": 32, "logprobs": 20, "max_tokens": 1_000}, 413),
    ({"n": 2, "logprobs": 20, "max_tokens": 5_000}, 413),
]
ENOUGH: list[dict[str, Any]] = [
    {"n": 256, "max_tokens": 60},
    {"n": 256, "logprobs": 0, "max_tokens": 60},
    {"n": 4, "logprobs": 5, "max_tokens": 4_096},
    {"logprobs": 20, "max_tokens": 100_000},
]


def jobs(params: dict[str, Any]) -> list[dict[str, Any]]:
    chat = {**params, "logprobs": True, "top_logprobs": params["logprobs"]}
    return [
        {"prompt": "Hi", "sampling_params": params},
        {"openai_route": "/v1/completions", "openai_input": {"prompt": "Hi", **params}},
        {"openai_route": CHAT, "openai_input": {"messages": MESSAGES, **chat}},
    ]


@pytest.mark.parametrize(("params", "code"), TOO_MUCH)
async def test_too_much_is_refused_before_it_is_computed(params: dict[str, Any], code: int) -> None:
    for job in jobs(params):
        with ScriptedEngine(*tokens("a")) as engine:
            error = failure(await yields_of(engine, job))
        assert (error["code"], engine.asked) == (code, [])
        assert error["param"] == "logprobs"


@pytest.mark.parametrize("params", ENOUGH)
async def test_what_may_fit_is_computed(params: dict[str, Any]) -> None:
    params = {"logprobs": None, **params}
    job = {"prompt": "Hi", "sampling_params": params}
    with ScriptedEngine(*tokens("a")) as engine:
        assert "error" not in (await yields_of(engine, job))[-1]


async def test_a_stream_has_room_for_more() -> None:
    params = {"n": 32, "logprobs": 20, "max_tokens": 1_000}
    job = {"prompt": "Hi", "sampling_params": params, "stream": True}
    with ScriptedEngine(*tokens("a")) as engine:
        assert "error" not in (await yields_of(engine, job))[-1]


async def test_an_item_of_a_list_that_asks_for_too_much_fails_alone() -> None:
    params = [{"max_tokens": 5}, {"n": 256, "logprobs": 20}]
    with ScriptedEngine(*tokens("a")) as engine:
        ((chunk),) = await yields_of(engine, {"prompts": ["a", "b"], "sampling_params": params})
    assert ["error" in found for found in chunk["outputs"]] == [False, True]


@pytest.mark.parametrize(
    ("prompts", "n", "fits"), [(1_024, 1, True), (128, 8, True), (129, 8, False)]
)
async def test_prompts_of_a_completion_count_with_their_choices(
    prompts: int, n: int, fits: bool
) -> None:
    body = {"prompt": ["a"] * prompts, "n": n}
    with ScriptedEngine(*tokens("a")) as engine:
        chunks = await yields_of(engine, {"openai_route": "/v1/completions", "openai_input": body})
    assert ("error" not in chunks[-1]) == fits
    assert bool(engine.asked) == fits


@pytest.mark.parametrize(
    ("route", "body"),
    [
        # One prompt, of many tokens.
        ("/v1/completions", {"prompt": [1] * 2_000, "n": 2}),
        # No log probabilities are asked for.
        (CHAT, {"messages": MESSAGES, "n": 2, "logprobs": False, "max_tokens": 150_000}),
    ],
)
async def test_what_only_looks_like_much_is_computed(route: str, body: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        chunks = await yields_of(engine, {"openai_route": route, "openai_input": body})
    assert "error" not in chunks[-1]
