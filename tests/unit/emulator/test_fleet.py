"""Workers as processes: started, watched, restarted and stopped."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
from support.processes.emulator_client import (
    SERVES,
    STAYS,
    STUBBORN,
    WITH_CHILD,
    end,
    program,
    running,
    state,
)

from emulator.fleet import WorkerProcess


async def test_a_worker_is_ready_when_it_asks_for_a_job(tmp_path: Path) -> None:
    async with running(tmp_path, program("time.sleep(0.05); " + STAYS)) as its:
        assert not its.fleet.ready.is_set()
        log = tmp_path / "worker-1.log"
        await its.fleet.ready.wait()
        await its.is_told("is ready after")
        assert re.fullmatch(r"worker-1 is ready after \d+\.\d s", its.told[1])
        assert its.told[0] == f"worker-1 starts (its log: {log})"
        (worker,) = await its.workers()
        assert (worker["id"], worker["ready"], worker["starts"]) == ("worker-1", True, 1)
        assert state(worker["pid"]) is not None
        assert (await its.client.get("/health"))["workers"]["idle"] == 1


async def test_each_worker_has_a_name_a_process_and_a_log_of_its_own(tmp_path: Path) -> None:
    prints = 'say("I am", environ["RUNPOD_POD_ID"], environ["OF_THE_ENDPOINT"]); '
    async with running(tmp_path, program(prints + STAYS), count=3) as its:
        await its.is_told("is ready after", times=3)
        workers = await its.workers()
        assert [worker["id"] for worker in workers] == ["worker-1", "worker-2", "worker-3"]
        assert len({worker["pid"] for worker in workers}) == 3
        for worker in workers:
            log = tmp_path / f"{worker['id']}.log"
            assert log.read_text() == f"I am {worker['id']} yes\n"


async def test_workers_of_a_fleet_answer_jobs(tmp_path: Path) -> None:
    async with running(tmp_path, program(SERVES), count=2) as its:
        jobs = [its.client.post("/runsync", {"input": number}) for number in range(8)]
        reports = await asyncio.gather(*jobs)
        assert [report["output"] for report in reports] == list(range(8))


async def test_what_a_worker_logged_when_it_was_served_before_is_gone(tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").write_text("old\n")
    async with running(tmp_path, program('say("new"); ' + STAYS)) as its:
        await its.fleet.ready.wait()
    assert (tmp_path / "worker-1.log").read_text() == "new\n"


async def test_workers_that_exit_are_started_again_the_later_the_less_they_came_up(
    tmp_path: Path,
) -> None:
    """Three of them: one that never asks for a job, one that does at last, one that always does."""
    text = """
name = environ["RUNPOD_POD_ID"]
say("start")
with open(sys.argv[1] + "/" + name + ".log") as log:
    starts = log.read().count("start\\n")
if name == "worker-3" or (name == "worker-2" and starts > 1):
    take()
sys.exit(starts)
"""
    command = (*program(text), str(tmp_path))
    async with running(tmp_path, command, count=3, take_poll_s=0.05) as its:
        await its.is_told("worker-1 exited with status 2; it is started again in 4 s")
        await its.is_told("worker-2 exited with status 2; it is started again in 1 s")
        assert "worker-1 exited with status 1; it is started again in 2 s" in its.told
        assert "worker-2 exited with status 1; it is started again in 2 s" in its.told
        assert "worker-3 exited with status 1; it is started again in 1 s" in its.told
        assert "worker-3 exited with status 2; it is started again in 1 s" in its.told
        # What it printed then, and not the time before.
        await its.is_told("    start", times=3)
        assert its.told.count("    start") == 3
        one, two, three = await its.workers()
        assert [worker["unhealthy"] for worker in (one, two, three)] == [True, False, False]
        assert (one["starts"], two["starts"], one["pid"]) == (2, 2, None)
        assert (await its.client.get("/health"))["workers"]["unhealthy"] == 1


async def test_the_last_lines_of_a_worker_that_never_came_up_are_told(tmp_path: Path) -> None:
    prints = 'print("x" * 9000); [print("line", n) for n in range(30)]; sys.exit(3)'
    async with running(tmp_path, program(prints)) as its:
        await its.is_told("worker-1 exited with status 3; it is started again in 2 s")
        await its.is_told("line 29")
        assert its.told[-1].splitlines() == [f"    line {number}" for number in range(10, 30)]


async def test_a_worker_that_is_killed_is_told_by_the_signals_name(tmp_path: Path) -> None:
    async with running(tmp_path, program("os.kill(os.getpid(), signal.SIGKILL)")) as its:
        await its.is_told("worker-1 exited by SIGKILL; it is started again in 2 s")
        await its.is_told("    (it printed nothing)")


async def test_the_job_of_a_worker_that_exits_fails(tmp_path: Path) -> None:
    async with running(tmp_path, program("take(); sys.exit(1)")) as its:
        report = await its.client.post("/runsync", {"input": 1})
        assert (report["status"], report["error"]) == (
            "FAILED",
            "worker-1 exited while it ran this job",
        )
        await its.is_told("worker-1 exited with status 1; it is started again in 1 s")


@pytest.mark.parametrize(
    ("name", "error"), [("missing", FileNotFoundError), ("not-executable", PermissionError)]
)
async def test_a_command_that_cannot_be_run_is_told_to_whoever_keeps_the_fleet(
    tmp_path: Path, name: str, error: type[OSError]
) -> None:
    (tmp_path / "not-executable").touch()
    async with running(tmp_path, [str(tmp_path / name)]) as its:
        with pytest.raises(error, match=name):
            await its.fleet.run_until(asyncio.Event())


async def test_a_log_that_cannot_be_written_is_told_likewise(tmp_path: Path) -> None:
    async with running(tmp_path / "nowhere", program(STAYS)) as its:
        with pytest.raises(FileNotFoundError, match=r"worker-1\.log"):
            await its.fleet.run_until(asyncio.Event())


async def test_a_fleet_runs_until_the_event(tmp_path: Path) -> None:
    async with running(tmp_path, program(STAYS)) as its:
        event = asyncio.Event()
        keeping = asyncio.create_task(its.fleet.run_until(event))
        await its.fleet.ready.wait()
        assert not keeping.done()
        event.set()
        await asyncio.wait_for(keeping, 10)
        (worker,) = await its.workers()
        assert state(worker["pid"]) is not None


async def test_nothing_is_left_running(tmp_path: Path) -> None:
    async with running(tmp_path, program(WITH_CHILD + STUBBORN), count=2) as its:
        await its.is_told("is ready after", times=2)
        pids = [worker["pid"] for worker in await its.workers()]
        pids += [int(await its.logged("child", f"worker-{number}")) for number in (1, 2)]
        assert None not in [state(pid) for pid in pids]
    await end(*pids)


async def test_what_a_worker_that_exited_left_behind_is_ended_too(tmp_path: Path) -> None:
    async with running(tmp_path, program(WITH_CHILD)) as its:
        await its.is_told("worker-1 exited with status 0")
        await end(int(await its.logged("child")))


async def test_a_worker_that_is_gone_takes_signals_in_silence(tmp_path: Path) -> None:
    process = await WorkerProcess.start((sys.executable, "-c", ""), {}, tmp_path / "log")
    assert await process.wait() == 0
    await process.kill()
    await process.kill()
