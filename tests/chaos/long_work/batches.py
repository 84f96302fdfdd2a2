"""Batches whose workers are killed, frozen, doubled, timed out, stopped and cancelled."""

import asyncio
import random
import shutil
from argparse import Namespace
from collections.abc import Awaitable, Callable

from support.processes.background import HUNG_S

from chaos.long_work.crew import add_takeovers, empty
from chaos.long_work.lane import Lane, lane
from chaos.report import Report, percentile
from emulator.faults import Action, Call, Fault
from emulator.state.job import Policy
from worker.batches.parts import GROUP_LINES, GROUP_S

LANES = 4
LINES_A_DEATH = 700
REAL_LINES_A_DEATH = 600
LATEST_S = 3.0  # so long after it has begun a worker is killed at most
# A commit on a busy disk, in seconds.
COMMIT_S = 1.0
TIMEOUT_MS = 5000

Scenario = Callable[[Lane, random.Random, int], Awaitable[str]]


async def killed(made: Lane, rng: random.Random, deaths: int) -> str:
    """Kill workers one after the other: the platform's retry, or another worker goes on."""
    job = made.send(made.write_input())
    name = made.start()
    for number in range(deaths):
        await made.progress()
        waiting = None
        if number % 2 and not made.real:
            made.go_on()
            waiting = made.start()
            await made.ready(waiting)
        await asyncio.sleep(rng.uniform(0, LATEST_S))
        async with made.takeover():
            await made.kill(name)
            name = waiting or made.start()
    await made.ended(job)
    return "completed"


async def zombie(made: Lane, rng: random.Random, _: int) -> str:
    """Stop a worker until another one has taken over, and let it go on in the middle of that."""
    await made.two()
    first = made.send(made.write_input())
    await made.progress(50)
    stopped = first.worker or ""
    async with made.takeover():
        made.emulator.freeze(stopped, HUNG_S)
        job = made.go_on()
    made.check(job.worker not in (None, stopped), "no other worker")
    # The time begins anew: until the thaw.
    made.emulator.freeze(stopped, rng.uniform(0, 2))
    await made.ended(job, first)
    return "completed"


async def doubled(made: Lane, _: random.Random, __: int) -> str:
    """Deliver one job to two workers at once, which share its shards."""
    names = await made.two()
    made.emulator.faults.add(Fault(on=Call.TAKE, do=Action.DUPLICATE, calls=1))
    job = made.send(made.write_input(jobs=2))
    await made.ended(job)
    # Of two workers one may say so before.
    await made.until(made.batch.ended, "it does not end")
    taken = [made.emulator.queue.worker(name).jobs for name in names]
    answered = {pid for _, pid, _ in made.answered()}
    both = taken == [1, 1] and len(answered) == len(names)
    made.check(both, f"{taken} jobs, {len(answered)} answered")
    return "completed"


async def timed_out(made: Lane, _: random.Random, __: int) -> str:
    """Let the platform end the job by its time, and have it sent again."""
    await made.ready(made.start())
    policy = Policy.model_validate({"executionTimeout": TIMEOUT_MS})
    job = made.emulator.queue.submit({"input": made.write_input()}, policy)
    await made.ended(job)
    async with made.takeover():
        again = made.go_on()
    await made.ended(again)
    return "completed"


async def stopped(made: Lane, _: random.Random, __: int) -> str:
    """Stop the worker as the platform does, with SIGTERM, while another one waits."""
    await made.two()
    job = made.send(made.write_input())
    await made.progress(50)
    name = job.worker or ""
    again = made.go_on()
    running = made.workers.pop(name)
    async with made.takeover():
        running.process.terminate()
    await asyncio.to_thread(running.ended)
    made.emulator.queue.lose(made.emulator.queue.worker(name))
    await made.ended(again)
    return "completed"


async def cancelled(made: Lane, _: random.Random, __: int) -> str:
    """Cancel in the middle, and after the end."""
    await made.two()
    job = made.send(made.write_input())
    await made.progress(50)
    cancel = {"route": f"/v1/batches/{made.batch.id}/cancel", "method": "POST"}
    asked = made.send(cancel)
    await made.ended(asked, job)
    late = made.send(cancel)
    await made.ended(late)
    made.check("can't be cancelled" in str(late.error), f"a cancel after the end: {late.status}")
    return "cancelled"


OTHERS: tuple[Scenario, ...] = (zombie, doubled, timed_out, stopped, cancelled)


async def run(args: Namespace) -> Report:
    """Kill so many workers of scripted engines and of real ones, and disturb others otherwise."""
    deaths, seed = args.kills, args.seed
    report = Report(f"batches, {deaths} and {args.real_kills} deaths, seed {seed}")
    place = empty(args.logs / "batches")

    async def ran(name: str, scenario: Scenario, share: int = 1, *, real: bool = False) -> Lane:
        count = share * (REAL_LINES_A_DEATH if real else LINES_A_DEATH) + 200
        async with lane(place / name, report, count, real=real) as made:
            status = await scenario(made, random.Random(f"{seed}/{name}"), share)
            made.check_end(status)
        return made

    shares = [deaths // LANES + (index < deaths % LANES) for index in range(LANES)]
    kills = [ran(f"kills-{index}", killed, share) for index, share in enumerate(shares) if share]
    kills += [ran("real", killed, args.real_kills, real=True)] if args.real_kills else []
    lanes = [*await asyncio.gather(*kills)]
    lanes += await asyncio.gather(*(ran(one.__name__, one) for one in OTHERS))
    lost = [pair for made in lanes for pair in zip(made.lost, made.oldest_s, strict=True)]
    for number, age in lost:
        holds = number <= GROUP_LINES or age <= GROUP_S + COMMIT_S
        report.check(holds, f"a death: {number} lines lost, {age:.1f} s")
    numbers = [number for number, _ in lost]
    middle, most = percentile(numbers, 0.5), max(numbers, default=0)
    report.figures.append(f"lines lost a death p50 {middle:g}, max {most}")
    for is_real, what in ((False, "scripted takeovers"), (True, "real takeovers")):
        add_takeovers(report, what, [made for made in lanes if made.real is is_real])
    shutil.rmtree(place, ignore_errors=True)
    return report
