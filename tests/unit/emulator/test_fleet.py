"""The fleet: starts, watches, signals, restarts and stops workers."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from support.processes.background import poll_until
from support.processes.fleets import (
    SERVES,
    STAYS,
    STUBBORN,
    WITH_CHILD,
    process_state,
    process_states,
    program,
    running_fleet,
    wait_until_exited,
)

import emulator
from emulator.fleet import WorkerProcessGroup
from emulator.options import NetworkVolume

SOURCE = Path(emulator.__file__).parents[1]


async def test_a_worker_is_ready_when_it_asks_for_a_job(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, STAYS) as running:
        assert not running.fleet.ready.is_set()
        await running.fleet.ready.wait()
        log = tmp_path / "worker-1.log"
        assert running.announced[0] == f"worker-1 starts (its log: {log})"
        assert re.fullmatch(r"worker-1 is ready after \d+\.\d s", running.announced[1])
        (worker,) = await running.workers()
        assert (worker["id"], worker["ready"], worker["starts"]) == ("worker-1", True, 1)
        assert process_state(worker["pid"]) is not None


async def test_each_worker_has_a_name_a_process_and_a_log_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").write_text("of an earlier fleet\n")
    prints = 'say("I am", environ["RUNPOD_POD_ID"], environ["OF_THE_ENDPOINT"]); '
    names = ["worker-1", "worker-2", "worker-3"]
    async with running_fleet(tmp_path, prints + STAYS, count=3) as running:
        assert len({*await running.pids()}) == 3
        assert [worker["id"] for worker in await running.workers()] == names
        assert [running.log(name) for name in names] == [f"I am {name} yes\n" for name in names]


async def test_each_worker_has_one_of_the_volumes_in_turn(tmp_path: Path) -> None:
    names = ("RUNPOD_VOLUME_ID", "RUNPOD_DC_ID", "BASE_PATH", "FILES_PATH")
    prints = f"say(*(environ[name] for name in {names})); "
    volumes = tuple(
        NetworkVolume(id, center, tmp_path / "disks" / id)
        for id, center in (("euvolume01", "EU-RO-1"), ("usvolume02", "US-KS-2"))
    )
    async with running_fleet(tmp_path, prints + STAYS, count=3, volumes=volumes) as running:
        await running.pids()
        lines = [running.log(f"worker-{number}").strip() for number in (1, 2, 3)]
        first, second = (f"{each.id} {each.data_center} {each.directory}" for each in volumes)
        assert lines == [first, second, first]
        assert all(volume.directory.is_dir() for volume in volumes)
        assert running.announced[1].startswith("worker-2 starts on usvolume02 (its log: ")


async def test_workers_that_exit_are_restarted_after_growing_delays(tmp_path: Path) -> None:
    """One worker never asks for a job, one does from its second start on, and one always does."""
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
    async with running_fleet(tmp_path, command, count=3, long_poll_s=0.05) as running:
        for worker, delay in (("worker-1", 2), ("worker-2", 2), ("worker-3", 1)):
            await running.wait_for_announcement(
                f"{worker} exited with status 1; restarting in {delay}"
            )
        running.peer.advance_clock(2)
        for worker, delay in (("worker-1", 4), ("worker-2", 1), ("worker-3", 1)):
            await running.wait_for_announcement(
                f"{worker} exited with status 2; restarting in {delay}"
            )
        # Only the lines that the log gained since that start.
        await running.wait_for_announcement("    start", times=5)
        assert {text for text in running.announced if text.startswith(" ")} == {"    start"}
        one, *others = await running.workers()
        assert (one["starts"] >= 2, one["unhealthy"]) == (True, True)
        assert [worker["unhealthy"] for worker in others] == [False, False]


@pytest.mark.parametrize(
    ("prints", "announced_lines"),
    [
        ("", "    (it printed nothing)"),
        (
            'print("x" * 9000); [print("line", n) for n in range(30)]; ',
            "\n".join(f"    line {number}" for number in range(10, 30)),
        ),
    ],
)
async def test_the_last_lines_of_a_worker_that_never_came_up_are_reported(
    tmp_path: Path, prints: str, announced_lines: str
) -> None:
    async with running_fleet(tmp_path, f"{prints}sys.exit(3)") as running:
        await running.wait_for_announcement(announced_lines)
    exited = "worker-1 exited with status 3; restarting in 2 s"
    assert running.announced[-2:] == [exited, announced_lines]


async def test_a_worker_that_only_reports_its_failed_start_is_not_ready(tmp_path: Path) -> None:
    answers = """
say("DTYPE is wrong")
job = take(**{"X-Worker-Start": "failed"})
call("RUNPOD_WEBHOOK_POST_OUTPUT", job["id"], {"error": "DTYPE is wrong"})
sys.exit(1)
"""
    async with running_fleet(tmp_path, answers) as running:
        await running.wait_for_announcement("    DTYPE is wrong")
        assert re.fullmatch(
            r"worker-1 failed to start after \d+\.\d s; it answers jobs with the reason:",
            running.announced[1],
        )
        (worker,) = await running.workers()
        assert (worker["ready"], worker["unhealthy"]) == (False, True)
        report = await running.peer.post("/runsync", {"input": 1})
        assert (report["status"], report["error"]) == ("FAILED", "DTYPE is wrong")
        await running.wait_for_announcement("worker-1 exited with status 1; restarting in 2 s")
        assert not running.fleet.ready.is_set()


async def test_a_workers_own_warnings_are_announced_when_it_is_ready(tmp_path: Path) -> None:
    lines = [
        "2026-01-31 12:00:00,000 WARNING worker: A is not a setting: did you mean B?",
        "2026-01-31 12:00:00,000 INFO    worker: found",
        "(MainProcess pid=1) WARNING 01-31 12:00:00 [model.py:1] of vLLM's own",
    ]
    async with running_fleet(tmp_path, f"[say(line) for line in {lines}]; {STAYS}") as running:
        await running.wait_for_announcement("did you mean")
        assert running.announced[2:] == ["    A is not a setting: did you mean B?"]


async def test_an_error_that_prevents_the_start_of_a_worker_is_raised_by_the_fleet(
    tmp_path: Path,
) -> None:
    async with running_fleet(tmp_path, [str(tmp_path / "missing")]) as running:
        with pytest.raises(FileNotFoundError, match="missing"):
            await running.fleet.run_until_event(asyncio.Event())


async def test_the_child_process_of_an_exited_worker_is_ended_too(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, WITH_CHILD) as running:
        await running.wait_for_announcement("worker-1 exited with status 0")
        await wait_until_exited(int(await running.wait_for_log_line("child")))


async def test_killing_an_exited_worker_has_no_effect(tmp_path: Path) -> None:
    process = await WorkerProcessGroup.start((sys.executable, "-c", ""), {}, tmp_path / "log")
    assert await process.wait() == 0
    await process.kill()
    await process.kill()


# Signals through the control routes:


async def test_sigstop_sigcont_and_sigkill_reach_all_processes_of_a_worker(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, WITH_CHILD + STAYS) as running:
        pids = await running.pids()
        await running.signal("SIGSTOP")
        await poll_until(lambda: process_states(pids) == ["T", "T"])
        await running.signal("SIGCONT")
        await poll_until(lambda: "T" not in process_states(pids))
        await running.signal("SIGKILL")
        await running.wait_for_announcement("worker-1 exited by SIGKILL; restarting in 1 s")
        await wait_until_exited(*pids)
        (worker,) = await running.workers()
        assert (worker["ready"], worker["pid"]) == (False, None)


LOGS_SIGNALS = """
def log(number, _):
    say(signal.Signals(number).name, who)
who = "first"
for number in (signal.SIGTERM, signal.SIGWINCH):
    signal.signal(number, log)
if os.fork() == 0:
    who = "child"
    say("pid", os.getpid())
    time.sleep(600)
"""


async def test_sigterm_reaches_the_first_process_only(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, LOGS_SIGNALS + STAYS) as running:
        await running.wait_for_announcement("is ready after")
        child = int(await running.wait_for_log_line("pid"))
        await running.signal("SIGTERM")
        assert await running.wait_for_log_line("SIGTERM") == "first"
        # If two signals are pending, the one with the larger number is handled last.
        os.kill(child, signal.SIGWINCH)
        assert await running.wait_for_log_line("SIGWINCH") == "child"
        assert "SIGTERM child" not in running.log()


async def test_an_idle_worker_is_stopped_and_starts_again_when_jobs_wait(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, SERVES, idle_timeout_s=0.2, long_poll_s=0.05) as running:
        for number in (1, 2):
            job = await running.peer.run(number)
            await running.wait_for_announcement("worker-1 was idle and has stopped", times=number)
            assert (await running.peer.status_object(job))["output"] == number
        # Without a job, it does not run.
        assert "".join(running.announced).count("worker-1 starts") == 2
        assert running.log().count("ends") == 2


async def test_a_worker_with_a_job_is_not_idle(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, SERVES, idle_timeout_s=0.2, long_poll_s=0.05) as running:
        job = await running.peer.run("until SIGTERM")
        await running.wait_for_announcement("worker-1 is ready")
        await running.wait_for_log_line("runs")
        await asyncio.sleep(0.5)
        assert (await running.peer.status_object(job))["status"] == "IN_PROGRESS"
        await running.drain()


# Draining: workers may finish their jobs within a grace period.


async def test_draining_lets_idle_workers_exit_immediately(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, SERVES, count=2) as running:
        pids = await running.pids()
        await running.drain()
        assert process_states(pids) == [None, None]
        for number in (1, 2):
            await running.wait_for_log_line("ends", f"worker-{number}")
        assert "started again" not in "".join(running.announced)
        assert (await running.peer.request("POST", "/run", json={"input": 1}))[0] == 503


async def test_draining_lets_a_worker_finish_the_job_it_runs(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, SERVES) as running:
        job = await running.peer.run("until SIGTERM")
        assert await running.wait_for_log_line("runs") == job
        await running.drain()
        report = await running.peer.status_object(job)
        assert (report["status"], report["output"]) == ("COMPLETED", "until SIGTERM")


@pytest.mark.parametrize("ends_by", ["its time", "a hurry"])
async def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_and_its_job_fails(
    tmp_path: Path, ends_by: str
) -> None:
    async with running_fleet(tmp_path, STUBBORN + WITH_CHILD + STAYS) as running:
        job = running.peer.queue.jobs[await running.peer.run()]
        pids = await running.pids()
        hurry = asyncio.Event()
        draining = asyncio.create_task(running.drain(30, hurry))
        await poll_until(lambda: running.peer.queue.is_closed)
        assert not draining.done()
        if ends_by == "its time":
            running.peer.advance_clock(30)
        else:
            hurry.set()
        await draining
        assert None not in process_states(pids)
    await wait_until_exited(*pids)
    assert (job.status, job.error) == ("FAILED", "worker-1 exited while it ran this job")
    worker = running.peer.queue.get_worker("worker-1")
    assert (worker.ready, worker.process) == (False, None)


async def test_a_starting_worker_is_drained_too(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, STAYS) as running:
        await asyncio.sleep(0)
        assert running.announced == [f"worker-1 starts (its log: {tmp_path / 'worker-1.log'})"]
        await running.drain()


async def test_a_worker_that_waits_for_its_restart_is_not_restarted_in_a_drain(
    tmp_path: Path,
) -> None:
    async with running_fleet(tmp_path, "sys.exit(1)") as running:
        await running.wait_for_announcement("restarting in 2 s")
        await running.drain()
        (worker,) = await running.workers()
        assert worker["starts"] == 1


async def test_workers_do_not_outlive_a_killed_emulator(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "emulator", "--port", "0", "--logs", str(tmp_path))
    worker = program(WITH_CHILD + "say('worker', os.getpid())\n" + STAYS)
    process = await asyncio.create_subprocess_exec(
        *(*command, "--", *worker), cwd=SOURCE, stdout=asyncio.subprocess.DEVNULL
    )
    log = tmp_path / "worker-1.log"
    await poll_until(lambda: log.exists() and "worker" in log.read_text())
    pids = [int(line.split()[1]) for line in log.read_text().splitlines()]
    assert None not in process_states(pids)
    process.kill()
    await process.wait()
    await wait_until_exited(*pids)
