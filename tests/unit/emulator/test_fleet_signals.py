"""Signals to a worker's processes, as a developer sends them."""

import asyncio
from pathlib import Path

from support.processes.emulator_client import (
    STAYS,
    WITH_CHILD,
    Running,
    end,
    eventually,
    program,
    running,
    state,
)

HEARS_SIGTERM = """
def hear(who):
    signal.signal(signal.SIGTERM, lambda *_: say("SIGTERM:", who))
if os.fork() == 0:
    hear("child")
    say("child hears")
    time.sleep(600)
hear("first")
"""


async def send(its: Running, name: str) -> int:
    path = "/control/workers/worker-1/signal"
    status, worker = await its.client.request("POST", path, json={"signal": name})
    assert (status, worker["id"]) == (200, "worker-1")
    return int(worker["pid"])


async def pids_of(its: Running) -> tuple[int, int]:
    """The first process and its child."""
    await its.fleet.ready.wait()
    (worker,) = await its.workers()
    return worker["pid"], int(await its.logged("child"))


async def test_sigkill_ends_all_processes_of_a_worker(tmp_path: Path) -> None:
    async with running(tmp_path, program(WITH_CHILD + STAYS)) as its:
        first, child = await pids_of(its)
        assert await send(its, "SIGKILL") == first
        await its.is_told("worker-1 exited by SIGKILL; it is started again in 1 s")
        await end(first, child)
        (worker,) = await its.workers()
        assert (worker["ready"], worker["pid"]) == (False, None)


async def test_sigstop_halts_all_processes_of_a_worker_until_sigcont(tmp_path: Path) -> None:
    async with running(tmp_path, program(WITH_CHILD + STAYS)) as its:
        pids = await pids_of(its)

        async def are_stopped() -> bool:
            return [state(pid) for pid in pids] == ["T", "T"]

        async def go_on() -> bool:
            return "T" not in [state(pid) for pid in pids]

        await send(its, "SIGSTOP")
        await eventually(are_stopped)
        await send(its, "SIGCONT")
        await eventually(go_on)


async def test_sigterm_reaches_the_first_process_only(tmp_path: Path) -> None:
    async with running(tmp_path, program(HEARS_SIGTERM + STAYS)) as its:
        await its.fleet.ready.wait()
        await its.logged("child hears")
        await send(its, "SIGTERM")
        assert await its.logged("SIGTERM:") == "first"
        await asyncio.sleep(0.05)
        log = (tmp_path / "worker-1.log").read_text()
        assert "SIGTERM: child" not in log


async def test_a_worker_ended_by_sigterm_is_started_again(tmp_path: Path) -> None:
    async with running(tmp_path, program(STAYS)) as its:
        await its.fleet.ready.wait()
        await send(its, "SIGTERM")
        await its.is_told("worker-1 exited by SIGTERM; it is started again in 1 s")


async def test_another_order_is_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    async with running(tmp_path, program(STAYS)) as its:
        await its.fleet.ready.wait()
        path = "/control/workers/worker-1/signal"
        for order, named in (
            ({}, "signal: Field required"),
            ({"signal": "SIGUSR1"}, "signal: "),
            ({"signal": 9}, "signal: "),
            ({"signal": "SIGKILL", "after": 1}, "after: "),
        ):
            status, answer = await its.client.request("POST", path, json=order)
            assert (status, named in answer["error"]) == (400, True)
        (worker,) = await its.workers()
        assert (worker["starts"], state(worker["pid"]) is None) == (1, False)


async def test_a_worker_that_is_to_be_started_again_cannot_be_signalled(tmp_path: Path) -> None:
    async with running(tmp_path, program("sys.exit(1)")) as its:
        await its.is_told("it is started again in 2 s")
        path = "/control/workers/worker-1/signal"
        status, answer = await its.client.request("POST", path, json={"signal": "SIGTERM"})
        assert (status, "no such worker is run" in answer["error"]) == (404, True)
