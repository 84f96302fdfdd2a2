"""The fleet: workers are started, watched, restarted and stopped."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
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

from emulator.process import WorkerProcess


async def test_a_worker_is_ready_when_it_asks_for_a_job(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program("time.sleep(0.05); " + STAYS)) as running:
        assert not running.fleet.ready.is_set()
        log = tmp_path / "worker-1.log"
        await running.fleet.ready.wait()
        await running.announces("is ready after")
        assert re.fullmatch(r"worker-1 is ready after \d+\.\d s", running.announced[1])
        assert running.announced[0] == f"worker-1 starts (its log: {log})"
        (worker,) = await running.workers()
        assert (worker["id"], worker["ready"], worker["starts"]) == ("worker-1", True, 1)
        assert process_state(worker["pid"]) is not None
        assert (await running.client.get("/health"))["workers"]["idle"] == 1


async def test_each_worker_has_a_name_a_process_and_a_log_of_its_own(tmp_path: Path) -> None:
    prints = 'say("I am", environ["RUNPOD_POD_ID"], environ["OF_THE_ENDPOINT"]); '
    async with running_fleet(tmp_path, program(prints + STAYS), count=3) as running:
        await running.announces("is ready after", times=3)
        workers = await running.workers()
        assert [worker["id"] for worker in workers] == ["worker-1", "worker-2", "worker-3"]
        assert len({worker["pid"] for worker in workers}) == 3
        for worker in workers:
            log = tmp_path / f"{worker['id']}.log"
            assert log.read_text() == f"I am {worker['id']} yes\n"


async def test_workers_of_a_fleet_answer_jobs(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(SERVES), count=2) as running:
        jobs = [running.client.post("/runsync", {"input": number}) for number in range(8)]
        reports = await asyncio.gather(*jobs)
        assert [report["output"] for report in reports] == list(range(8))


async def test_what_a_worker_logged_when_it_was_served_before_is_gone(tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").write_text("old\n")
    async with running_fleet(tmp_path, program('say("new"); ' + STAYS)) as running:
        await running.fleet.ready.wait()
    assert (tmp_path / "worker-1.log").read_text() == "new\n"


async def test_workers_that_exit_are_started_again_the_later_the_less_they_came_up(
    tmp_path: Path,
) -> None:
    """Of three workers one never asks for a job, one from its second start on, one always."""
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
    async with running_fleet(tmp_path, command, count=3, take_poll_s=0.05) as running:
        await running.announces("worker-1 exited with status 2; it is started again in 4 s")
        await running.announces("worker-2 exited with status 2; it is started again in 1 s")
        assert "worker-1 exited with status 1; it is started again in 2 s" in running.announced
        assert "worker-2 exited with status 1; it is started again in 2 s" in running.announced
        assert "worker-3 exited with status 1; it is started again in 1 s" in running.announced
        assert "worker-3 exited with status 2; it is started again in 1 s" in running.announced
        # The log's lines since that start only.
        await running.announces("    start", times=5)
        assert {text for text in running.announced if text.startswith(" ")} == {"    start"}
        one, two, three = await running.workers()
        assert [worker["unhealthy"] for worker in (one, two, three)] == [True, False, False]
        assert (one["starts"], one["pid"]) == (2, None)
        assert (await running.client.get("/health"))["workers"]["unhealthy"] == 1


async def test_the_last_lines_of_a_worker_that_never_came_up_are_reported(tmp_path: Path) -> None:
    prints = 'print("x" * 9000); [print("line", n) for n in range(30)]; sys.exit(3)'
    async with running_fleet(tmp_path, program(prints)) as running:
        await running.announces("worker-1 exited with status 3; it is started again in 2 s")
        await running.announces("line 29")
        assert running.announced[-1].splitlines() == [
            f"    line {number}" for number in range(10, 30)
        ]


async def test_a_worker_that_only_answers_why_its_start_failed_is_not_ready(tmp_path: Path) -> None:
    answers = """
say("DTYPE is wrong")
job = take(**{"X-Worker-Start": "failed"})
call("RUNPOD_WEBHOOK_POST_OUTPUT", job["id"], {"error": "DTYPE is wrong"})
sys.exit(1)
"""
    async with running_fleet(tmp_path, program(answers)) as running:
        await running.announces("    DTYPE is wrong")
        assert re.fullmatch(
            r"worker-1's start failed after \d+\.\d s; it answers why:", running.announced[1]
        )
        (worker,) = await running.workers()
        assert (worker["ready"], worker["unhealthy"]) == (False, True)
        report = await running.client.post("/runsync", {"input": 1})
        assert (report["status"], report["error"]) == ("FAILED", "DTYPE is wrong")
        await running.announces("worker-1 exited with status 1; it is started again in 2 s")
        assert not running.fleet.ready.is_set()


async def test_a_workers_own_warnings_are_announced_when_it_is_ready(tmp_path: Path) -> None:
    lines = [
        "2026-01-31 12:00:00,000 WARNING worker: A is not a setting: did you mean B?",
        "2026-01-31 12:00:00,000 INFO    worker: found",
        "(MainProcess pid=1) WARNING 01-31 12:00:00 [model.py:1] of vLLM's own",
    ]
    prints = f"[say(line) for line in {lines}]; "
    async with running_fleet(tmp_path, program(prints + STAYS)) as running:
        await running.announces("is ready after")
        await running.announces("did you mean")
        assert running.announced[2:] == ["    A is not a setting: did you mean B?"]


async def test_a_worker_that_is_killed_is_reported_with_the_signals_name(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program("os.kill(os.getpid(), signal.SIGKILL)")) as running:
        await running.announces("worker-1 exited by SIGKILL; it is started again in 2 s")
        await running.announces("    (it printed nothing)")


async def test_the_job_of_a_worker_that_exits_fails(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program("take(); sys.exit(1)")) as running:
        report = await running.client.post("/runsync", {"input": 1})
        assert (report["status"], report["error"]) == (
            "FAILED",
            "worker-1 exited while it ran this job",
        )
        await running.announces("worker-1 exited with status 1; it is started again in 1 s")


@pytest.mark.parametrize(
    ("name", "error"), [("missing", FileNotFoundError), ("not-executable", PermissionError)]
)
async def test_a_command_that_cannot_be_run_is_reported_to_the_owner_of_the_fleet(
    tmp_path: Path, name: str, error: type[OSError]
) -> None:
    (tmp_path / "not-executable").touch()
    async with running_fleet(tmp_path, [str(tmp_path / name)]) as running:
        with pytest.raises(error, match=name):
            await running.fleet.run_until(asyncio.Event())


async def test_a_log_that_cannot_be_written_is_reported_likewise(tmp_path: Path) -> None:
    async with running_fleet(tmp_path / "nowhere", program(STAYS)) as running:
        with pytest.raises(FileNotFoundError, match=r"worker-1\.log"):
            await running.fleet.run_until(asyncio.Event())


async def test_a_fleet_runs_until_the_event(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(STAYS)) as running:
        event = asyncio.Event()
        keeping = asyncio.create_task(running.fleet.run_until(event))
        await running.fleet.ready.wait()
        assert not keeping.done()
        event.set()
        await asyncio.wait_for(keeping, 60)
        (worker,) = await running.workers()
        assert process_state(worker["pid"]) is not None


async def test_nothing_is_left_running(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(WITH_CHILD + STUBBORN), count=2) as running:
        await running.announces("is ready after", times=2)
        pids = [worker["pid"] for worker in await running.workers()]
        pids += [int(await running.logged("child", f"worker-{number}")) for number in (1, 2)]
        assert None not in [process_state(pid) for pid in pids]
    await wait_gone(*pids)


async def test_what_a_worker_that_exited_left_behind_is_ended_too(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(WITH_CHILD)) as running:
        await running.announces("worker-1 exited with status 0")
        await wait_gone(int(await running.logged("child")))


async def test_a_worker_that_is_gone_takes_signals_in_silence(tmp_path: Path) -> None:
    process = await WorkerProcess.start((sys.executable, "-c", ""), {}, tmp_path / "log")
    assert await process.wait() == 0
    await process.kill()
    await process.kill()
