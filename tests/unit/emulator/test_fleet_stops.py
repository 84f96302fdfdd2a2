"""The end of a fleet: its workers may finish their jobs, for a while."""

import asyncio
import sys
from pathlib import Path

import pytest
from support.processes.emulator_peer import eventually
from support.processes.fleets import (
    SERVES,
    STAYS,
    STUBBORN,
    WITH_CHILD,
    program,
    running_fleet,
    states,
    wait_gone,
)

import emulator

SOURCE = Path(emulator.__file__).parents[1]


async def test_draining_lets_workers_that_wait_for_jobs_exit_at_once(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, SERVES, count=2) as running:
        pids = await running.pids()
        await running.drain()
        assert states(pids) == [None, None]
        for number in (1, 2):
            await running.logged("ends", f"worker-{number}")
        assert "started again" not in "".join(running.announced)
        assert (await running.peer.request("POST", "/run", json={"input": 1}))[0] == 503


async def test_draining_lets_a_worker_finish_the_job_it_runs(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, SERVES) as running:
        job = await running.peer.run("until SIGTERM")
        assert await running.logged("runs") == job
        await running.drain()
        report = await running.peer.report(job)
        assert (report["status"], report["output"]) == ("COMPLETED", "until SIGTERM")


@pytest.mark.parametrize("ends_by", ["its time", "a hurry"])
async def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_and_its_job_fails(
    tmp_path: Path, ends_by: str
) -> None:
    async with running_fleet(tmp_path, STUBBORN + WITH_CHILD + STAYS) as running:
        job = running.peer.emulator.job(await running.peer.run())
        pids = await running.pids()
        hurry = asyncio.Event()
        draining = asyncio.create_task(running.drain(30, hurry))
        await eventually(lambda: running.peer.queue.closed)
        assert not draining.done()
        if ends_by == "its time":
            running.peer.let_pass(30)
        else:
            hurry.set()
        await draining
        assert None not in states(pids)
    await wait_gone(*pids)
    assert (job.status, job.error) == ("FAILED", "worker-1 exited while it ran this job")
    worker = running.peer.queue.worker("worker-1")
    assert (worker.ready, worker.process) == (False, None)


async def test_a_worker_that_is_just_being_started_is_drained_too(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, STAYS) as running:
        await asyncio.sleep(0)
        assert running.announced == [f"worker-1 starts (its log: {tmp_path / 'worker-1.log'})"]
        await running.drain()


async def test_a_worker_that_waits_for_its_start_is_not_started_in_a_drain(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, "sys.exit(1)") as running:
        await running.announces("it is started again in 2 s")
        await running.drain()
        (worker,) = await running.workers()
        assert worker["starts"] == 1


async def test_workers_do_not_outlive_an_emulator_that_is_killed(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "emulator", "--port", "0", "--logs", str(tmp_path))
    worker = program(WITH_CHILD + "say('worker', os.getpid())\n" + STAYS)
    process = await asyncio.create_subprocess_exec(
        *(*command, "--", *worker), cwd=SOURCE, stdout=asyncio.subprocess.DEVNULL
    )
    log = tmp_path / "worker-1.log"
    await eventually(lambda: log.exists() and "worker" in log.read_text())
    pids = [int(line.split()[1]) for line in log.read_text().splitlines()]
    assert None not in states(pids)
    process.kill()
    await process.wait()
    await wait_gone(*pids)
