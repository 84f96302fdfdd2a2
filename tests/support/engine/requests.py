"""Requests of a real engine: one whose answer is not awaited, and vLLM's counts of them."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from support.processes.background import HUNG_S

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine


# Parameters of a request that takes ten seconds or more unless it is aborted: 90,000 tokens.
ENDLESS: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True, "n": 100}


def text_of(chunks: Iterable[Any], choice: int = 0) -> str:
    """Return the text that the yields of a raw job hold together."""
    return "".join(text for chunk in chunks for text in chunk["choices"][choice]["tokens"])


async def until_idle(engine: "InProcessEngine") -> None:
    """Wait until no request holds a slot."""
    async with asyncio.timeout(HUNG_S):
        while engine.unfinished_requests:
            await asyncio.sleep(0.01)


def ended_by_length(engine: "InProcessEngine") -> float:
    """Return how many requests have generated all the tokens they could: none was aborted."""
    return sum(
        sample.value
        for metric in engine.metrics.collect()
        for sample in metric.samples
        if sample.name == "vllm:request_success_total"
        and sample.labels["finished_reason"] == "length"
    )
