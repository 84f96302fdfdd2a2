"""Sets an engine aside three times; checks what it answers around it, and what each time leaves."""

import asyncio
import gc
import sys
import time
from typing import Any

import psutil
from support.engine.requests import ENDLESS
from support.engine.scripted import failure
from support.processes.background import HUNG_S

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

# The core, and the process that reads its output.
PROCESSES = 2
# A dead client is collected only when the next core is used: its sockets' descriptors, and threads.
ONE_CLIENT = 20
MEGABYTES = 40
GREEDY = {"prompt": "Count:", "sampling_params": {"temperature": 0, "max_tokens": 20}}
GRAMMAR = {"prompt": "Count:", "sampling_params": {"guided_regex": "[0-9]{3}"}}
# Runs for longer than it is waited for.
ENDLESS_STREAM = {"prompt": "Count:", "stream": True, "sampling_params": ENDLESS}


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
    """Return the last yield of a job."""
    return [chunk async for chunk in worker.handle({"id": "job", "input": payload})][-1]


async def used_with(children: int) -> dict[str, int]:
    """Return what this process holds once so many children are left: some end by themselves."""
    until = time.monotonic() + HUNG_S
    while (found := used())["children"] > children and time.monotonic() < until:
        await asyncio.sleep(0.1)
    return found


async def absences(engines: Engines, settings: Settings) -> None:
    worker = Worker(engines, settings)
    engine: Any = engines.main
    answer = await ask(worker, GREEDY)
    # The process that tries grammars begins meanwhile: this waits for it.
    assert "choices" in await ask(worker, GRAMMAR)
    before, after = used(), []
    for _ in range(3):
        running = asyncio.create_task(ask(worker, ENDLESS_STREAM))
        while not engine.unfinished_requests:
            await asyncio.sleep(0.1)
        async with engines.aside(HUNG_S, drain_s=0.2):
            # Fewer where one had just ended that the start had begun.
            most = before["children"] - PROCESSES
            assert (await used_with(most))["children"] <= most
            asked = asyncio.create_task(ask(worker, GREEDY))
        assert await asked == await ask(worker, GREEDY) == answer
        error = failure([await running])
        assert (error["code"], error["retryable"]) == (503, True)
        after.append(await used_with(before["children"]))
        assert after[-1]["children"] <= before["children"]
    first, *_, last = after
    for kind in ("descriptors", "threads"):
        assert last[kind] <= min(first[kind] + 3, before[kind] + ONE_CLIENT), (before, after)
    assert last["megabytes"] <= before["megabytes"] + MEGABYTES, (before, after)


def main(model: str) -> None:
    # Imported here, as in production: vLLM reads the environment.
    from worker.engine.arguments import StartContext  # noqa: PLC0415 - see above
    from worker.engine.options import Options  # noqa: PLC0415 - see above
    from worker.engine.start import Start, launch  # noqa: PLC0415 - see above

    # No restart is spent.
    settings = Settings.from_env({"MODEL_NAME": model, "MAX_ENGINE_RESTARTS": "0"})
    environ = {"MODEL": model, "MAX_MODEL_LEN": "1024", "SERVED_MODEL_NAME": "demo"}
    options = Options()
    engine = options.parse(environ).arguments
    with launch.launched(Start(settings, (engine,), StartContext(options.machine))) as engines:
        asyncio.run(absences(engines, settings))


if __name__ == "__main__":
    main(sys.argv[1])
