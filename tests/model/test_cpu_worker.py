"""An engine on a CPU: it compiles nothing, and seeds don't depend on what else it computes."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from worker.app import Worker

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

TOGETHER = range(5)
# All together they are longer than a step, so that one is computed in two of them.
PROMPT_TOKENS = 700
PARAMS = {"max_tokens": 20, "temperature": 1.0}


def seeded(path: str, prompt: list[int], seed: int) -> dict[str, Any]:
    if path == "raw":
        return {"prompt": prompt, "sampling_params": {**PARAMS, "seed": seed}}
    body = {"model": "demo", "prompt": prompt, "seed": seed, **PARAMS}
    return {"openai_route": "/v1/completions", "openai_input": body}


def text(answer: dict[str, Any]) -> str:
    (choice,) = answer["choices"]
    return str(choice["text"] if "text" in choice else choice["tokens"])


@pytest.mark.parametrize("path", ["raw", "openai"])
async def test_a_seeded_answer_is_the_same_when_its_prompt_is_computed_in_parts(
    path: str, worker: Worker, engine: "InProcessEngine"
) -> None:
    config = engine._client.vllm_config.scheduler_config
    assert config.enable_chunked_prefill
    assert PROMPT_TOKENS * len(TOGETHER) > config.max_num_batched_tokens > PROMPT_TOKENS

    async def answer(seed: int) -> str:
        # Prompts that no other test has left in the cache.
        first = 7 * seed + (100 if path == "raw" else 200)
        prompt = [(first + 3 * number) % 500 + 5 for number in range(PROMPT_TOKENS)]
        job = {"id": f"{path}-{seed}", "input": seeded(path, prompt, seed)}
        (whole,) = [chunk async for chunk in worker.handle(job)]
        return text(json.loads(whole) if isinstance(whole, str) else whole)

    core = engine._healer.core
    together = await asyncio.gather(*map(answer, TOGETHER))
    # An engine that died would be started again, and the answers would come.
    assert engine._healer.core is core
    assert together == [await answer(seed) for seed in TOGETHER]
    assert len(set(together)) > 1


async def test_an_engine_compiles_nothing_for_log_probabilities(
    ask: Callable[..., Awaitable[list[Any]]], compiled: Path
) -> None:
    """vLLM's own worker halts for seconds, at the first of them in each core."""
    (whole,) = await ask(prompt="Hello", sampling_params={"max_tokens": 1, "logprobs": 2})
    assert len(whole["choices"][0]["logprobs"]) == 1
    assert not list(compiled.rglob("*.so"))  # noqa: ASYNC240 - a small directory
