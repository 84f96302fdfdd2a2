"""Three requests at once for a worker that holds two: `python -m clients.llm_engine_busy`."""

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llmengine
from clients.llm_engine_refusals import told
from llmengine import Completion

# Runs until all three are there.
LONG: dict[str, Any] = {
    "model": "demo",
    "prompt": "Once",
    "temperature": 0.0,
    "guided_regex": "[a-z ]{800}",
    "max_new_tokens": 1800,
}
AT_ONCE = 3


def create() -> int:
    return len(Completion.create(**LONG).output.text)


def stream() -> int:
    return sum(len(event.output.text) for event in Completion.create(stream=True, **LONG))


async def acreate() -> int:
    answer = await Completion.acreate(**LONG)
    return len(answer.output.text)


def ended(call: Callable[[], int]) -> Any:
    try:
        return call()
    except llmengine.errors.ServerError as error:
        return told(error)


def in_threads(call: Callable[[], int]) -> list[Any]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(ended, [call] * AT_ONCE))


async def in_tasks() -> list[Any]:
    found = await asyncio.gather(*(acreate() for _ in range(AT_ONCE)), return_exceptions=True)
    return [told(one) if isinstance(one, Exception) else one for one in found]


def main() -> None:
    answers = {
        "sync": in_threads(create),
        "stream": in_threads(stream),
        "async": asyncio.run(in_tasks()),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
