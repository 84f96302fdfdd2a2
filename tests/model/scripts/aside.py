"""Sets an engine aside three times; prints what it answered around it, and what each time left."""

import asyncio
import gc
import json
import sys
import time
from typing import Any

import psutil
from support.processes.background import HUNG_S

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

# The core, and the process that reads its output.
PROCESSES = 2
BODY = {"messages": [{"role": "user", "content": "Count to five"}], "logprobs": True}
BODY |= {"temperature": 0, "max_tokens": 20}
CHAT = {"openai_route": "/v1/chat/completions", "openai_input": BODY}
RAW = {"prompt": "Count:", "sampling_params": {"temperature": 0, "max_tokens": 20}}
GRAMMAR = {"prompt": "Count:", "sampling_params": {"guided_regex": "[0-9]{3}"}}
# Runs for longer than it is waited for.
LONG = {
    "prompt": "Count:",
    "stream": True,
    "sampling_params": {"max_tokens": 900, "ignore_eos": True, "n": 50},
}


def used() -> dict[str, int]:
    """Return what this process holds: its children, file descriptors, threads and megabytes."""
    gc.collect()
    process = psutil.Process()
    return {
        "children": len(process.children(recursive=True)),
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "megabytes": process.memory_info().rss // 1_000_000,
    }


async def ask(worker: Worker, payload: dict[str, Any]) -> Any:
    """Return the last yield of a job, without what differs from request to request."""
    last = [chunk async for chunk in worker.handle({"id": "job", "input": payload})][-1]
    return last["choices"] if "choices" in last else last.get("outputs", last)


async def used_with(children: int) -> dict[str, int]:
    """Return what this process holds once it has no more children than these.

    A start begins some that end by themselves.
    """
    until = time.monotonic() + HUNG_S
    while (found := used())["children"] > children and time.monotonic() < until:
        await asyncio.sleep(0.1)
    return found


async def absence(worker: Worker, engines: Engines, children: int) -> dict[str, Any]:
    """Ask while the engine is set aside, and after it; this process had so many children before."""
    running = asyncio.create_task(ask(worker, LONG))
    while not engines.main.metrics.get_sample_value(
        "vllm:num_requests_running", {"engine": "0", "model_name": "demo"}
    ):
        await asyncio.sleep(0.1)
    async with engines.aside(HUNG_S, drain_s=0.2):
        inside = await used_with(children - PROCESSES)
        asked = asyncio.gather(ask(worker, CHAT), ask(worker, RAW))
    return {
        "inside": inside,
        "asked": await asked,
        "running": json.loads((await running)["error"])["error"],
        "answers": [await ask(worker, CHAT), await ask(worker, RAW)],
        "after": await used_with(children),
    }


async def absences(engines: Engines, settings: Settings) -> dict[str, Any]:
    worker = Worker(engines, settings)
    answers = [await ask(worker, CHAT), await ask(worker, RAW)]
    # The process that tries grammars begins meanwhile: this waits for it.
    assert isinstance(await ask(worker, GRAMMAR), list)
    before = used()
    rounds = [await absence(worker, engines, before["children"]) for _ in range(3)]
    return {"answers": answers, "before": before, "rounds": rounds}


def main(model: str) -> None:
    # Imported here, as in production: vLLM reads the environment.
    from worker.engine import launch, options  # noqa: PLC0415 - see above

    # No restart is spent.
    settings = Settings.from_env({"MODEL_NAME": model, "MAX_ENGINE_RESTARTS": "0"})
    environ = {"MODEL": model, "MAX_MODEL_LEN": "1024", "SERVED_MODEL_NAME": "demo"}
    with launch.launched(settings, [options.Options().parse(environ)]) as engines:
        results = asyncio.run(absences(engines, settings))
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
