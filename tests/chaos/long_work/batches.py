"""Batches whose workers are killed, frozen, duplicated, timed out, stopped and cancelled.

No worker has a key, and no caller sends a second job: the remaining workers take each batch up.
"""

import asyncio
import random
import shutil
from argparse import Namespace
from collections.abc import Awaitable, Callable

from support.processes.background import HUNG_S

from chaos.long_work.crew import add_takeovers, make_empty_folder
from chaos.long_work.lane import Lane, open_lane
from chaos.report import Report, percentile
from emulator import LostJobHandling
from emulator.faults import Action, Call, Fault
from emulator.job import Policy
from worker.batches.parts import GROUP_LINES, GROUP_S

LANES = 4
REQUEUED_LANES = ("kills-0", "kills-1")
LINES_PER_KILL = 700
REAL_LINES_PER_KILL = 600
MAX_KILL_DELAY_S = 3.0  # from the worker's first progress to its kill
# Seconds for a commit on a busy disk.
COMMIT_S = 1.0
TIMEOUT_MS = 5000

Scenario = Callable[[Lane, random.Random, int], Awaitable[str]]


async def kill_workers(lane: Lane, rng: random.Random, kills: int) -> str:
    """Kill workers sequentially; an idle worker or the next one continues the batch."""
    lane.send(lane.write_input())
    name = lane.start()
    for number in range(kills):
        await lane.wait_for_progress()
        waiting = None
        if number % 2 and not lane.real_engine:
            waiting = lane.start()
            await lane.wait_until_ready(waiting)
        await asyncio.sleep(rng.uniform(0, MAX_KILL_DELAY_S))
        async with lane.measure_takeover():
            await lane.kill(name)
            name = waiting or lane.start()
    await lane.wait_for_end()
    return "completed"


async def resume_stopped_worker(lane: Lane, rng: random.Random, _: int) -> str:
    """Freeze a worker until another one has taken over, then thaw it while that one works."""
    await lane.start_two()
    first = lane.send(lane.write_input())
    await lane.wait_for_progress(50)
    stopped_id = first.worker_id or ""
    async with lane.measure_takeover():
        lane.emulator.freeze_worker(stopped_id, HUNG_S)
    # This restarts the freeze, which now ends within two seconds.
    lane.emulator.freeze_worker(stopped_id, rng.uniform(0, 2))
    await lane.wait_for_jobs(first)
    await lane.wait_for_end()
    return "completed"


async def deliver_job_twice(lane: Lane, _: random.Random, __: int) -> str:
    """Deliver one job to two workers, which then share its shards."""
    workers = await lane.start_two()
    lane.emulator.faults.add(Fault(on=Call.TAKE, do=Action.DUPLICATE, calls=1))
    job = lane.send(lane.write_input(jobs=2))
    await lane.wait_for_jobs(job)
    # One of the two workers may report the end before the other has finished.
    await lane.wait_for_end()
    job_counts = [lane.emulator.queue.get_worker(name).jobs for name in workers]
    answered = {pid for _, pid, _ in lane.answered_lines()}
    is_shared = job_counts == [1, 1] and len(answered) == len(workers)
    lane.check(is_shared, f"{job_counts} jobs, {len(answered)} answered")
    return "completed"


async def exceed_execution_timeout(lane: Lane, _: random.Random, __: int) -> str:
    """Let the platform end the job at its execution timeout; the idle worker continues."""
    await lane.wait_until_ready(lane.start())
    policy = Policy.model_validate({"executionTimeout": TIMEOUT_MS})
    job = lane.emulator.queue.submit({"input": lane.write_input()}, policy)
    await lane.wait_for_jobs(job)
    async with lane.measure_takeover():
        pass
    await lane.wait_for_end()
    return "completed"


async def stop_worker(lane: Lane, _: random.Random, __: int) -> str:
    """Stop the worker with SIGTERM, as the platform does, while another one is waiting."""
    await lane.start_two()
    job = lane.send(lane.write_input())
    await lane.wait_for_progress(50)
    name = job.worker_id or ""
    running = lane.workers.pop(name)
    async with lane.measure_takeover():
        running.process.terminate()
    await asyncio.to_thread(running.wait_for_exit)
    lane.emulator.queue.handle_worker_exit(lane.emulator.queue.get_worker(name))
    await lane.wait_for_end()
    return "completed"


async def cancel_batch(lane: Lane, _: random.Random, __: int) -> str:
    """Cancel the batch while it runs, and again after its end."""
    await lane.start_two()
    job = lane.send(lane.write_input())
    await lane.wait_for_progress(50)
    cancel = {"route": f"/v1/batches/{lane.batch.id}/cancel", "method": "POST"}
    cancel_job = lane.send(cancel)
    await lane.wait_for_jobs(cancel_job, job)
    late_job = lane.send(cancel)
    await lane.wait_for_jobs(late_job)
    lane.check(
        "can't be cancelled" in str(late_job.error), f"a cancel after the end: {late_job.status}"
    )
    return "cancelled"


OTHER_SCENARIOS: tuple[Scenario, ...] = (
    resume_stopped_worker,
    deliver_job_twice,
    exceed_execution_timeout,
    stop_worker,
    cancel_batch,
)


async def run(args: Namespace) -> Report:
    """Kill workers with scripted and with real engines, and run the other scenarios."""
    kill_count, seed = args.kills, args.seed
    report = Report(f"batches, {kill_count} and {args.real_kills} kills, seed {seed}")
    folder = make_empty_folder(args.logs / "batches")

    async def run_scenario(
        name: str, scenario: Scenario, share: int = 1, *, real_engine: bool = False
    ) -> Lane:
        count = share * (REAL_LINES_PER_KILL if real_engine else LINES_PER_KILL) + 200
        # The platform delivers a lost job again in some lanes.
        lost_as = LostJobHandling.REQUEUED if name in REQUEUED_LANES else LostJobHandling.FAILED
        async with open_lane(
            folder / name, report, lost_as, count, real_engine=real_engine
        ) as lane:
            status = await scenario(lane, random.Random(f"{seed}/{name}"), share)
            lane.check_end(status)
        return lane

    shares = [kill_count // LANES + (index < kill_count % LANES) for index in range(LANES)]
    runs = [
        run_scenario(f"kills-{index}", kill_workers, share)
        for index, share in enumerate(shares)
        if share
    ]
    if args.real_kills:
        runs.append(run_scenario("real", kill_workers, args.real_kills, real_engine=True))
    lanes = [*await asyncio.gather(*runs)]
    lanes += await asyncio.gather(
        *(run_scenario(scenario.__name__, scenario) for scenario in OTHER_SCENARIOS)
    )
    lost = [
        pair for lane in lanes for pair in zip(lane.lost_lines, lane.oldest_lost_s, strict=True)
    ]
    for number, age in lost:
        is_ok = number <= GROUP_LINES or age <= GROUP_S + COMMIT_S
        report.check(is_ok, f"a kill lost {number} lines, the oldest {age:.1f} s old")
    numbers = [number for number, _ in lost]
    median, maximum = percentile(numbers, 0.5), max(numbers, default=0)
    report.figures.append(f"lines lost per kill p50 {median:g}, max {maximum}")
    for has_real_engine, title in ((False, "scripted takeovers"), (True, "real takeovers")):
        add_takeovers(
            report, title, [lane for lane in lanes if lane.real_engine is has_real_engine]
        )
    shutil.rmtree(folder, ignore_errors=True)
    return report
