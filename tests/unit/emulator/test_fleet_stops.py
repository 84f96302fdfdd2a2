"""The end of a fleet: its workers may finish their jobs, for a while."""

import asyncio
import sys
from pathlib import Path

import pytest
from support.processes.emulator_client import eventually
from support.processes.fleets import (
    SERVES,
    STAYS,
    STUBBORN,
    WITH_CHILD,
    process_state,
    program,
    running_fleet,
    wait_gone,
)

import emulator

SOURCE = Path(emulator.__file__).parents[1]
LONG_S = 600.0  # a grace period that no test uses up


async def test_draining_lets_workers_that_wait_for_jobs_exit_at_once(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(SERVES), count=2) as running:
        await running.announces("is ready after", times=2)
        pids = [worker["pid"] for worker in await running.workers()]
        async with asyncio.timeout(60):
            await running.fleet.drain(LONG_S, asyncio.Event())
        assert [process_state(pid) for pid in pids] == [None, None]
        for number in (1, 2):
            await running.logged("ends", f"worker-{number}")
        assert "started again" not in "".join(running.announced)
        assert (await running.client.request("POST", "/run", json={"input": 1}))[0] == 503


async def test_draining_lets_a_worker_finish_the_job_it_runs(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(SERVES)) as running:
        job = await running.client.run("until SIGTERM")
        assert await running.logged("runs") == job
        assert (await running.client.status(job))["status"] == "IN_PROGRESS"
        async with asyncio.timeout(60):
            await running.fleet.drain(LONG_S, asyncio.Event())
        report = await running.client.status(job)
        assert (report["status"], report["output"]) == ("COMPLETED", "until SIGTERM")


async def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(STUBBORN)) as running:
        await running.fleet.ready.wait()
        (worker,) = await running.workers()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await running.fleet.drain(0.05, asyncio.Event())
        assert loop.time() - begun >= 0.05
        assert process_state(worker["pid"]) is not None
    await wait_gone(worker["pid"])


@pytest.mark.parametrize("after_s", [0.0, 0.05])
async def test_a_hurry_ends_the_grace_at_once(tmp_path: Path, after_s: float) -> None:
    async with running_fleet(tmp_path, program(STUBBORN)) as running:
        await running.fleet.ready.wait()
        (worker,) = await running.workers()
        hurry = asyncio.Event()
        asyncio.get_running_loop().call_later(after_s, hurry.set)
        async with asyncio.timeout(60):
            await running.fleet.drain(LONG_S, hurry)
        assert hurry.is_set()
        assert process_state(worker["pid"]) is not None
    await wait_gone(worker["pid"])


async def test_the_job_of_a_worker_that_is_killed_at_the_end_fails(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(STUBBORN)) as running:
        job = running.client.emulator.job(await running.client.run())
        assert await job.changed.wait_for(lambda: job.worker is not None, 60)
        await running.fleet.drain(0, asyncio.Event())
    assert (job.status, job.error) == ("FAILED", "worker-1 exited while it ran this job")
    worker = running.client.emulator.queue.worker("worker-1")
    assert (worker.ready, worker.process) == (False, None)


async def test_a_worker_that_is_just_being_started_is_drained_too(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(STAYS)) as running:
        await asyncio.sleep(0)
        assert running.announced == [f"worker-1 starts (its log: {tmp_path / 'worker-1.log'})"]
        async with asyncio.timeout(60):
            await running.fleet.drain(LONG_S, asyncio.Event())


async def test_a_worker_that_would_be_started_again_is_not_when_the_endpoint_is_drained(
    tmp_path: Path,
) -> None:
    async with running_fleet(tmp_path, program("sys.exit(1)")) as running:
        await running.announces("it is started again in 2 s")
        async with asyncio.timeout(60):
            await running.fleet.drain(LONG_S, asyncio.Event())
        (worker,) = await running.workers()
        assert worker["starts"] == 1


async def test_draining_only_keeps_workers_started_by_hand_from_asking_for_jobs(
    tmp_path: Path,
) -> None:
    async with running_fleet(tmp_path, program(SERVES)) as running:
        await running.fleet.ready.wait()
        asking = asyncio.create_task(running.client.request("GET", "/job-take/by-hand"))
        workers = running.client.emulator.queue.workers
        await running.client.emulator.queue.arrived.wait_for(lambda: "by-hand" in workers, 60)
        async with asyncio.timeout(60):
            await running.fleet.drain(LONG_S, asyncio.Event())
            assert await asking == (204, None)


async def test_workers_do_not_outlive_an_emulator_that_is_killed(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "emulator", "--port", "0", "--logs", str(tmp_path))
    worker = program(WITH_CHILD + "say('worker', os.getpid())\n" + STAYS)
    process = await asyncio.create_subprocess_exec(
        *(*command, "--", *worker), cwd=SOURCE, stdout=asyncio.subprocess.DEVNULL
    )
    log = tmp_path / "worker-1.log"

    async def runs() -> bool:
        return log.exists() and "worker" in log.read_text()

    await eventually(runs)
    pids = [int(line.split()[1]) for line in log.read_text().splitlines()]
    assert None not in [process_state(pid) for pid in pids]
    process.kill()
    await process.wait()
    await wait_gone(*pids)
