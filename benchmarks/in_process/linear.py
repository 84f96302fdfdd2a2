"""Shows that the cost per token and per MB doesn't grow with the answer and the input.

    PYTHONPATH=src:tests python benchmarks/in_process/linear.py

A scripted engine takes no time, so this measures `Worker.handle`: the CPU time of this process, the
minimum of three runs.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from support.engine.scripted import (
    ScriptedEngine,
    chat_job,
    event,
    raw_job,
    static_app,
    tokens,
    worker,
)

LENGTHS = (1_000, 2_000, 4_000, 8_000, 16_000)
SIZES_MB = (1, 2, 4, 8)
WORD = "word "
EVENT = event({"choices": [{"delta": {"content": WORD}}]})
Engine = Callable[[], ScriptedEngine]


async def cpu_s(engine: Engine, payload: dict[str, Any]) -> float:
    """Return the CPU seconds of a job, from its input to its last yield."""
    results = []
    for _ in range(3):
        with engine() as running:
            answering = worker(running).handle({"id": "job", "input": payload})
            started_at = time.process_time()
            async for _chunk in answering:
                pass
            results.append(time.process_time() - started_at)
    return min(results)


def streams(length: int) -> dict[str, tuple[Engine, dict[str, Any]]]:
    return {
        "raw": (lambda: ScriptedEngine(*tokens(*[WORD] * length)), raw_job(stream=True)),
        "events": (
            lambda: ScriptedEngine(
                app=static_app(*[EVENT] * length, media_type="text/event-stream")
            ),
            chat_job(stream=True),
        ),
    }


def inputs(size_mb: int) -> dict[str, tuple[Engine, dict[str, Any]]]:
    prompt = WORD * (size_mb * 1_000_000 // len(WORD))
    messages = {"messages": [{"role": "user", "content": prompt}]}
    return {
        "raw": (lambda: ScriptedEngine(*tokens("a")), {"prompt": prompt}),
        "chat": (
            lambda: ScriptedEngine(app=static_app('{"choices": []}')),
            {"openai_route": "/v1/chat/completions", "openai_input": messages},
        ),
    }


async def main() -> None:
    for length in LENGTHS:
        for kind, (engine, payload) in streams(length).items():
            cost = 1e6 * await cpu_s(engine, payload) / length
            print(f"{length:6} tokens, {kind:6} {cost:6.1f} us a token")
    for size_mb in SIZES_MB:
        for kind, (engine, payload) in inputs(size_mb).items():
            cost = 1e3 * await cpu_s(engine, payload) / size_mb
            print(f"{size_mb:6} MB, {kind:10} {cost:6.1f} ms a MB")


if __name__ == "__main__":
    asyncio.run(main())
