"""Suspends an engine three times, and checks its answers and the resources of this process."""

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
# Descriptors and threads of a dead client, which is collected only when the next core is used.
CLIENT_RESOURCES = 20
MEGABYTES = 40
GREEDY = {"prompt": "Count:", "sampling_params": {"temperature": 0, "max_tokens": 20}}
GRAMMAR = {"prompt": "Count:", "sampling_params": {"guided_regex": "[0-9]{3}"}}
# A stream that runs longer than its timeout.
ENDLESS_STREAM = {"prompt": "Count:", "stream": True, "sampling_params": ENDLESS}


def resource_usage() -> dict[str, int]:
    """Return the numbers of children, file descriptors, threads and megabytes of this process."""
    gc.collect()
    process = psutil.Process()
    return {
        "children": len(process.children(recursive=True)),
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "megabytes": process.memory_info().rss // 1_000_000,
    }


async def ask(worker: Worker, payload: dict[str, Any]) -> Any:
    """Return the last chunk of a job."""
    return [chunk async for chunk in worker.handle({"id": "job", "input": payload})][-1]


async def wait_for_children(children: int) -> dict[str, int]:
    """Return the resources once at most this number of children is left; some exit on their own."""
    until = time.monotonic() + HUNG_S
    while (found := resource_usage())["children"] > children and time.monotonic() < until:
        await asyncio.sleep(0.1)
    return found


async def check_suspensions(engines: Engines, settings: Settings) -> None:
    worker = Worker(engines, settings)
    engine: Any = engines.main_engine
    answer = await ask(worker, GREEDY)
    # This job starts the process that tries grammars.
    assert "choices" in await ask(worker, GRAMMAR)
    before, after = resource_usage(), []
    for _ in range(3):
        running = asyncio.create_task(ask(worker, ENDLESS_STREAM))
        while not engine.unfinished_request_count:
            await asyncio.sleep(0.1)
        async with engines.suspend(HUNG_S, drain_timeout_s=0.2):
            # There are fewer children if a child of the startup has just exited.
            most = before["children"] - PROCESSES
            assert (await wait_for_children(most))["children"] <= most
            asked = asyncio.create_task(ask(worker, GREEDY))
        assert await asked == await ask(worker, GREEDY) == answer
        error = failure([await running])
        assert (error["code"], error["retryable"]) == (503, True)
        after.append(await wait_for_children(before["children"]))
        assert after[-1]["children"] <= before["children"]
    first, *_, last = after
    for kind in ("descriptors", "threads"):
        assert last[kind] <= min(first[kind] + 3, before[kind] + CLIENT_RESOURCES), (before, after)
    assert last["megabytes"] <= before["megabytes"] + MEGABYTES, (before, after)


def main(model: str) -> None:
    # vLLM reads the environment on import, so it is imported as late as in production.
    from worker.engine.options import Options  # noqa: PLC0415 - see above
    from worker.engine.start import Start, launch  # noqa: PLC0415 - see above

    # A suspension does not count as a restart.
    settings = Settings.from_env({"MODEL_NAME": model, "MAX_ENGINE_RESTARTS": "0"})
    environ = {"MODEL": model, "MAX_MODEL_LEN": "1024", "SERVED_MODEL_NAME": "demo"}
    options = Options()
    engine = options.parse_engine_settings(environ).arguments
    with launch.launch_engines(
        Start(settings, engines=[engine], machine=options.machine)
    ) as engines:
        asyncio.run(check_suspensions(engines, settings))


if __name__ == "__main__":
    main(sys.argv[1])
