"""Requests of a real engine: parameters of a long request, and vLLM's counts of requests."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from support.processes.background import HUNG_S

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine


# Parameters of a request for 90,000 tokens, which takes at least ten seconds unless it is aborted.
ENDLESS: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True, "n": 100}


def text_of(chunks: Iterable[Any], choice: int = 0) -> str:
    """Return the whole text in the yields of a raw job."""
    return "".join(text for chunk in chunks for text in chunk["choices"][choice]["tokens"])


async def wait_until_idle(engine: "InProcessEngine") -> None:
    """Wait until no request occupies a slot."""
    async with asyncio.timeout(HUNG_S):
        while engine.unfinished_request_count:
            await asyncio.sleep(0.01)


def count_length_finishes(engine: "InProcessEngine") -> float:
    """Return the number of requests that generated all their tokens, so were not aborted."""
    return sum(
        sample.value
        for metric in engine.metrics.collect()
        for sample in metric.samples
        if sample.name == "vllm:request_success_total"
        and sample.labels["finished_reason"] == "length"
    )
