"""Batches whose workers are killed, frozen, doubled, timed out, stopped and cancelled."""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from support.processes.background import HUNG_S

from chaos.lane import Lane, lane
from chaos.report import Report, percentile, print_line
from emulator.faults import Action, Call, Fault
from emulator.payload import Policy
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
    job = made.submit(made.write_input())
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
    await job.wait_ended(HUNG_S)
    return "completed"


async def zombie(made: Lane, rng: random.Random, _: int) -> str:
    """Stop a worker until another one has taken over, and let it go on in the middle of that."""
    await made.two()
    first = made.submit(made.write_input())
    await made.progress(50)
    stopped = first.worker or ""
    async with made.takeover():
        made.emulator.freeze(stopped, HUNG_S)
        job = made.go_on()
    made.report.check(holds=job.worker not in (None, stopped), otherwise="zombie: no other worker")
    # The time begins anew: until the thaw.
    made.emulator.freeze(stopped, rng.uniform(0, 2))
    await job.wait_ended(HUNG_S)
    await first.wait_ended(HUNG_S)
    return "completed"


async def doubled(made: Lane, _: random.Random, __: int) -> str:
    """Deliver one job to two workers at once, which share its shards."""
    names = await made.two()
    made.emulator.faults.add(Fault(on=Call.TAKE, do=Action.DUPLICATE, calls=1))
    job = made.submit(made.write_input(jobs=2))
    await job.wait_ended(HUNG_S)
    await made.ended()
    taken = [made.emulator.queue.worker(name).jobs for name in names]
    answered = {pid for _, pid, what, _ in made.noted() if what == "ended"}
    both = taken == [1, 1] and len(answered) == len(names)
    made.report.check(holds=both, otherwise=f"doubled: {taken} jobs, {len(answered)} answered")
    return "completed"


async def timed_out(made: Lane, _: random.Random, __: int) -> str:
    """Let the platform end the job by its time, and have it sent again."""
    await made.ready(made.start())
    policy = Policy.model_validate({"executionTimeout": TIMEOUT_MS})
    job = made.emulator.queue.submit({"input": made.write_input()}, policy)
    await job.wait_ended(HUNG_S)
    async with made.takeover():
        again = made.go_on()
    await again.wait_ended(HUNG_S)
    return "completed"


async def stopped(made: Lane, _: random.Random, __: int) -> str:
    """Stop the worker as the platform does, with SIGTERM, while another one waits."""
    await made.two()
    job = made.submit(made.write_input())
    await made.progress(50)
    name = job.worker or ""
    again = made.go_on()
    running = made.workers.pop(name)
    async with made.takeover():
        running.process.terminate()
    await asyncio.to_thread(running.ended)
    made.emulator.queue.lose(made.emulator.queue.worker(name))
    await again.wait_ended(HUNG_S)
    return "completed"


async def cancelled(made: Lane, _: random.Random, __: int) -> str:
    """Cancel in the middle, and after the end."""
    await made.two()
    job = made.submit(made.write_input())
    await made.progress(50)
    cancel = {"route": f"/v1/batches/{made.batch.id}/cancel", "method": "POST"}
    asked = made.submit(cancel)
    await asked.wait_ended(HUNG_S)
    await job.wait_ended(HUNG_S)
    late = made.submit(cancel)
    await late.wait_ended(HUNG_S)
    refused = "can't be cancelled" in (late.error or "")
    made.report.check(holds=refused, otherwise=f"a cancel after the end: {late.status}")
    return "cancelled"


OTHERS: tuple[Scenario, ...] = (zombie, doubled, timed_out, stopped, cancelled)


async def run(deaths: int, real: int, seed: int, folder: Path) -> Report:
    """Kill so many workers of scripted engines and of real ones, and disturb others otherwise."""
    report = Report(f"batches, {deaths} and {real} deaths, seed {seed}")
    place = folder / "batches"
    shutil.rmtree(place, ignore_errors=True)
    shares = [deaths // LANES + (index < deaths % LANES) for index in range(LANES)]
    lanes = [(killed, share, False) for share in shares if share]
    if real:
        lanes.append((killed, real, True))
    ran = await asyncio.gather(
        *(
            _lane(
                "real" if is_real else f"kills {index}",
                scenario,
                share,
                is_real,
                (seed, place, report),
            )
            for index, (scenario, share, is_real) in enumerate(lanes)
        )
    )
    ran += await asyncio.gather(
        *(_lane(one.__name__, one, 1, False, (seed, place, report)) for one in OTHERS)
    )
    _add_figures(report, ran)
    shutil.rmtree(place, ignore_errors=True)
    return report


async def _lane(
    name: str, scenario: Scenario, deaths: int, real: bool, shared: tuple[int, Path, Report]
) -> Lane:
    seed, place, report = shared
    count = deaths * (REAL_LINES_A_DEATH if real else LINES_A_DEATH) + 200
    async with lane(place / name.replace(" ", "-"), report, name, count, real=real) as made:
        status = await scenario(made, random.Random(f"{seed}/{name}"), deaths)
        made.check_end(status)
    return made


def _add_figures(report: Report, ran: list[Lane]) -> None:
    """Print a row for each batch.

    Its lines; the times until another attempt had durable ones; lines that were begun again,
    answered again (of the scripted engine's, which notes it), and durable in two parts; what was
    answered and not durable when a worker was killed (likewise); how often the batch was looked at.
    """
    row = "  {:10} {:>5} {:>9} {:>8} {:>11} {:>14} {:>13} {:>13} {:>12} {:>5}  {}"
    heads = ("lines", "takeovers", "longest", "begun again", "answered again", "durable again")
    print_line(row.format("", *heads, "lost, a death", "oldest of it", "looks", ""))
    for made in ran:
        for number, age in zip(made.lost, made.oldest_s, strict=True):
            holds = number <= GROUP_LINES or age <= GROUP_S + COMMIT_S
            report.check(holds=holds, otherwise=f"{made.name}: {number} lines lost, {age:.1f} s")
        took = f"{max(made.takeovers_s):.1f} s" if made.takeovers_s else "-"
        answered = made.answered_again()
        again = (made.begun_again(), "-" if answered is None else answered, made.durable_again())
        lost = f"{max(made.lost)} lines" if made.lost else "-"
        oldest = f"{max(made.oldest_s):.2f} s" if made.oldest_s else "-"
        figures = (made.count, len(made.takeovers_s), took, *again, lost, oldest, made.reads)
        bad = any(one.startswith(f"{made.name}:") for one in report.broken)
        print_line(row.format(made.name, *map(str, figures), "bad" if bad else "good"))
    all_lost = [one for made in ran for one in made.lost]
    for real, what in ((False, "scripted"), (True, "real")):
        took_s = [one for made in ran if made.real is real for one in made.takeovers_s]
        if took_s:
            middle, longest = percentile(took_s, 0.5), max(took_s)
            report.figures.append(f"{what} takeovers p50 {middle:.1f} s, max {longest:.1f}")
    middle, most = percentile(all_lost, 0.5), max(all_lost, default=0)
    report.figures.append(f"lines lost a death p50 {middle:g}, max {most}")
