"""A worker that only trains, on a queue endpoint: what it takes of the queue."""

import json
from pathlib import Path

from support.processes.background import HUNG_S
from support.processes.commands import SCRIPT
from support.processes.emulated_endpoint import BackgroundWorker
from support.processes.forked import forked

from emulator import Emulator, Options

ROWS = [{"prompt": f"Say {n}.", "response": f"It is {n}."} for n in range(200)]
LONG = {"rows": ROWS, "hyperparameters": {"epochs": 19, "batch_size": 1}}


async def test_it_takes_one_job_so_that_the_next_one_is_another_workers(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    async with Emulator(Options(take_poll_s=1)) as emulator:
        environ = {**worker_environ, **emulator.worker_environ(), "BASE_PATH": str(tmp_path)}
        # As the serving endpoint has it, whose settings are copied.
        environ |= {"MAX_CONCURRENCY": "30"}
        with forked([SCRIPT, "--train"], environ, tmp_path / "log") as running:
            worker = emulator.queue.worker("worker-1")
            worker.process = BackgroundWorker(running)
            first = emulator.queue.submit({"input": {"fine_tune": LONG}})
            assert await worker.changed.wait_for(lambda: worker.jobs == 1, HUNG_S), running.output
            second = emulator.queue.submit({"input": {"fine_tune": {"id": "ftjob-" + "a" * 24}}})
            # It begins when the first one has ended, and not before.
            assert not await second.wait_ended(5)
            assert (worker.jobs, first.ended) == (1, False)
            emulator.queue.cancel(first)
            assert await second.wait_ended(HUNG_S)
            assert json.loads(str(second.error))["error"]["code"] == 404
