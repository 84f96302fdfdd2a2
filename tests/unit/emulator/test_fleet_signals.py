"""Signals that a developer sends to a worker through the control routes."""

import asyncio
from pathlib import Path

from support.processes.emulator_client import eventually
from support.processes.fleets import (
    STAYS,
    WITH_CHILD,
    RunningFleet,
    process_state,
    program,
    running_fleet,
    wait_gone,
)

LOGS_SIGTERM = """
def log_sigterm(who):
    signal.signal(signal.SIGTERM, lambda *_: say("SIGTERM:", who))
if os.fork() == 0:
    log_sigterm("child")
    say("child is ready")
    time.sleep(600)
log_sigterm("first")
"""


async def send(running: RunningFleet, name: str) -> int:
    path = "/control/workers/worker-1/signal"
    status, worker = await running.client.request("POST", path, json={"signal": name})
    assert (status, worker["id"]) == (200, "worker-1")
    return int(worker["pid"])


async def pids_of(running: RunningFleet) -> tuple[int, int]:
    """Return the ids of the first process and of its child."""
    await running.fleet.ready.wait()
    (worker,) = await running.workers()
    return worker["pid"], int(await running.logged("child"))


async def test_sigkill_ends_all_processes_of_a_worker(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(WITH_CHILD + STAYS)) as running:
        first, child = await pids_of(running)
        assert await send(running, "SIGKILL") == first
        await running.announces("worker-1 exited by SIGKILL; it is started again in 1 s")
        await wait_gone(first, child)
        (worker,) = await running.workers()
        assert (worker["ready"], worker["pid"]) == (False, None)


async def test_sigstop_halts_all_processes_of_a_worker_until_sigcont(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(WITH_CHILD + STAYS)) as running:
        pids = await pids_of(running)

        async def are_stopped() -> bool:
            return [process_state(pid) for pid in pids] == ["T", "T"]

        async def go_on() -> bool:
            return "T" not in [process_state(pid) for pid in pids]

        await send(running, "SIGSTOP")
        await eventually(are_stopped)
        await send(running, "SIGCONT")
        await eventually(go_on)


async def test_sigterm_reaches_the_first_process_only(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(LOGS_SIGTERM + STAYS)) as running:
        await running.fleet.ready.wait()
        await running.logged("child is ready")
        await send(running, "SIGTERM")
        assert await running.logged("SIGTERM:") == "first"
        await asyncio.sleep(0.05)
        log = (tmp_path / "worker-1.log").read_text()
        assert "SIGTERM: child" not in log


async def test_a_worker_ended_by_sigterm_is_started_again(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(STAYS)) as running:
        await running.fleet.ready.wait()
        await send(running, "SIGTERM")
        await running.announces("worker-1 exited by SIGTERM; it is started again in 1 s")


async def test_another_order_is_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(STAYS)) as running:
        await running.fleet.ready.wait()
        path = "/control/workers/worker-1/signal"
        for body, message in (
            ({}, "signal: Field required"),
            ({"signal": "SIGUSR1"}, "signal: "),
            ({"signal": 9}, "signal: "),
            ({"signal": "SIGKILL", "after": 1}, "after: "),
        ):
            status, answer = await running.client.request("POST", path, json=body)
            assert (status, message in answer["error"]) == (400, True)
        (worker,) = await running.workers()
        assert (worker["starts"], process_state(worker["pid"]) is None) == (1, False)


async def test_a_worker_that_is_to_be_started_again_cannot_be_signalled(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program("sys.exit(1)")) as running:
        await running.announces("it is started again in 2 s")
        path = "/control/workers/worker-1/signal"
        status, answer = await running.client.request("POST", path, json={"signal": "SIGTERM"})
        assert (status, "no such worker is run" in answer["error"]) == (404, True)
