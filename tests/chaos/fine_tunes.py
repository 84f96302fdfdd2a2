"""Fine-tunes whose trainers and workers are killed, frozen and doubled; full disks; cancels."""

import asyncio
import json
import random
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from support.disks import fill, mounted

from chaos.report import Report, print_line
from chaos.trainings import Numbers, lives, moments, own_memory
from chaos.tuning import Stuck, Tuning, tuning
from worker.errors import Conflict
from worker.fine_tunes.state import FineTune
from worker.trainer.spec import CHECKPOINTS

# Of the disk that becomes full, in bytes.
DISK = 64 * 2**20
MIB = 2**20
# What a training may add to the memory of the process that serves, in bytes.
GROWTH = 5 * MIB
# Seconds until one that is cancelled has ended, and until a trainer that was thawed is gone.
CANCEL_S = 5.0
# Who is killed, and when. "any": within half of the time that a fine-tune takes; "writing": a
# checkpoint, one or two epochs after the one before the last kill.
RETRIED = ("trainer checking", "worker any", "trainer writing", "worker publishing")
TAKEN_OVER = ("worker checking", "trainer any", "worker writing")
RESTARTED = ("trainer writing", "worker any", "worker writing")
SERVE = ("--train", "--serve", "--port", "0")

Scenario = Callable[[Tuning, random.Random, Numbers], Awaitable[None]]


async def undisturbed(made: Tuning) -> tuple[Numbers, str]:
    """Run a fine-tune beside an engine; return its numbers, and what the memory was."""
    name = made.start("--serve", "--port", "0")
    fine_tune = await made.served(name)
    worker = psutil.Process(made.workers[name].process.pid)
    before = highest = own_memory(worker)
    while not fine_tune.ended():
        await asyncio.sleep(0.1)
        highest = max(highest, own_memory(worker))
    grown = own_memory(worker) - before
    made.check(holds=abs(grown) < GROWTH, otherwise=f"the worker has grown by {grown / MIB:.1f} MB")
    text = (
        f"{before / MIB:.0f} MB, {(highest - before) / MIB:+.1f} during, {grown / MIB:+.1f} after"
    )
    return made.numbers(fine_tune), text


async def retried(made: Tuning, rng: random.Random, reference: Numbers) -> None:
    """Kill one after the other; the platform sends the job again, to another worker."""
    made.start()
    job, fine_tune = await made.begin()
    await _killed(made, rng, reference, fine_tune, RETRIED)
    await made.ended(job)


async def taken_over(made: Tuning, rng: random.Random, reference: Numbers) -> None:
    """Kill likewise, while another worker waits with a further job."""
    await made.two()
    job, fine_tune = await made.begin()
    again = made.submit(id=fine_tune.id)
    await _killed(made, rng, reference, fine_tune, TAKEN_OVER)
    await made.ended(job, again)


async def restarted(made: Tuning, rng: random.Random, reference: Numbers) -> None:
    """Kill likewise a server, which is started again and goes on by itself."""
    fine_tune = await made.served(made.start(*SERVE))
    await _killed(made, rng, reference, fine_tune, RESTARTED, *SERVE)
    await made.until(fine_tune.ended, "it does not end")


async def _killed(
    made: Tuning,
    rng: random.Random,
    reference: Numbers,
    fine_tune: FineTune,
    kills: tuple[str, ...],
    *options: str,
) -> None:
    before = 0
    for kill in kills:
        who, when = kill.split()
        if when == "writing":
            await made.further(fine_tune, rng.choice((1, 2)))
        reached = moments(fine_tune, before)["begun" if when == "any" else when]
        await made.until(reached, f"{kill}: never")
        if when == "any":
            await made.pause(fine_tune, rng.uniform(0, reference.seconds / 2))
        before = len(fine_tune.attempts())
        if who == "trainer":
            made.kill_trainer()
        else:
            await made.kill(made.holder(fine_tune))
            made.start(*options)
        early = fine_tune.ended()
        made.check(holds=not early, otherwise=f"it ended before the kill of the {kill}")
        made.disturbances += 1
        if when != "publishing":
            await made.taken_over(fine_tune, before)


async def cancelled(made: Tuning, rng: random.Random, reference: Numbers) -> None:
    """Cancel in each state; while an adapter is published that is refused."""
    await made.ready(made.start())
    for status in ("validating_files", "running", "queued", "paused"):
        await _cancelled_in(made, status, rng.uniform(0, reference.seconds / 2))
    job, fine_tune = await made.begin()
    await made.until(lambda: fine_tune.publishing, "it is never published")
    refused = False
    try:
        fine_tune.cancel()
    except Conflict:
        refused = True
    made.check(holds=refused, otherwise="cancelled while it was published")
    await made.ended(job)


async def _cancelled_in(made: Tuning, status: str, seconds: float) -> None:
    job, fine_tune = await made.begin()
    first = "validating_files" if status == "validating_files" else "running"
    await made.until(lambda: fine_tune.status == first, f"never {first}")
    if status == "running":
        await made.pause(fine_tune, seconds)
    elif status == "paused":
        fine_tune.pause()
        await made.ended(job)
    elif status == "queued":
        fine_tune.pause()
        await made.ended(job)
        # Nobody has a job for it.
        fine_tune.resume()
    reached = fine_tune.status == status
    made.check(holds=reached, otherwise=f"{fine_tune.status}, not {status}")
    await _cancel(made, fine_tune)
    await made.ended(job)


async def _cancel(made: Tuning, fine_tune: FineTune) -> None:
    since = time.monotonic()
    made.disturbances += 1
    # As a route does it.
    fine_tune.cancel()
    fine_tune.settle()
    await made.until(fine_tune.ended, "it does not end")
    await made.until(lambda: not made.trainers(fine_tune), "its trainer does not end")
    took_s = time.monotonic() - since
    made.cancels_s.append(took_s)
    made.check(holds=took_s < CANCEL_S, otherwise=f"cancelled after {took_s:.1f} s")
    result = fine_tune.result
    holds = result is not None and (result.status, result.adapter) == ("cancelled", None)
    made.check(holds=holds, otherwise=f"not cancelled: {result}")


async def frozen(made: Tuning, rng: random.Random, _: Numbers) -> None:
    """Stop a worker with its trainer until another one has taken over, and let both go on."""
    await made.two()
    job, fine_tune = await made.begin()
    again = made.submit(id=fine_tune.id)
    await made.until(lambda: any(fine_tune.directory.glob(f"*/*/{CHECKPOINTS}/*")), "no checkpoint")
    worker = psutil.Process(made.workers[made.holder(fine_tune)].process.pid)
    stopped = [worker, *worker.children(recursive=True)]
    for one in stopped:
        one.send_signal(signal.SIGSTOP)
    made.disturbances += 1
    await made.taken_over(fine_tune, 1)
    await asyncio.sleep(rng.uniform(0, 2))
    for one in rng.sample(stopped, len(stopped)):
        one.send_signal(signal.SIGCONT)
    trainers = [one for one in stopped if one in made.trainers(fine_tune)]
    since = time.monotonic()
    await made.until(lambda: not any(map(lives, trainers)), "the thawed trainer does not end")
    took_s = time.monotonic() - since
    made.check(holds=took_s < CANCEL_S, otherwise=f"a thawed trainer lived for {took_s:.1f} s")
    await made.ended(job, again)


async def doubled(made: Tuning, _: random.Random, __: Numbers) -> None:
    """Send two jobs for one fine-tune, to two workers."""
    names = await made.two()
    job, fine_tune = await made.begin()
    made.disturbances += 1
    await made.ended(job, made.submit(id=fine_tune.id))
    taken = [made.emulator.queue.worker(name).jobs for name in names]
    attempts = len(fine_tune.attempts())
    made.check(holds=(taken, attempts) == ([1, 1], 1), otherwise=f"{taken} jobs, {attempts} begun")


async def queued(made: Tuning, _: random.Random, __: Numbers) -> None:
    """Send two fine-tunes to one worker, which takes one after the other."""
    await made.ready(made.start())
    (first_job, first), (second_job, second) = await made.begin(), await made.begin()
    made.disturbances += 1
    await made.until(second.attempts, "the second one never begins")
    made.check(holds=first.ended(), otherwise="the second one has begun beside the first")
    await made.ended(first_job, second_job)


async def full(made: Tuning, _: random.Random, __: Numbers) -> None:
    """Fill the disk in the middle, and go on when there is room."""
    await made.ready(made.start())
    job, fine_tune = await made.begin()
    await made.until(lambda: any(fine_tune.directory.glob(f"*/*/{CHECKPOINTS}/*")), "no checkpoint")
    filler = fill(made.root)
    made.disturbances += 1
    await job.wait_ended()
    error = json.loads(str(job.error))["error"] if job.error else {}
    made.check(holds=error.get("code") == 507, otherwise=f"a full disk: {error}")
    filler.unlink()
    again = made.submit(id=fine_tune.id)
    await made.ended(again)


# Those of a line run at once.
STAGES: tuple[tuple[Scenario, ...], ...] = (
    (retried, taken_over, restarted),
    (cancelled, frozen),
    (doubled, queued, full),
)


async def run(seed: int, folder: Path) -> Report:
    """Run one undisturbed, and disturb others, whose results have to be the same."""
    report = Report(f"fine-tunes, seed {seed}")
    place = folder / "fine-tunes"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    async with tuning(place / "undisturbed", report) as made:
        reference, memory = await undisturbed(made)
        made.check_end(reference)
    ran = [made]
    for stage in STAGES:
        lanes = (_lane(one, place / one.__name__, seed, report, reference) for one in stage)
        ran += filter(None, await asyncio.gather(*lanes))
    report.figures += [f"{reference.steps} steps in {reference.seconds:.0f} s", f"memory {memory}"]
    _print_table(ran)
    shutil.rmtree(place, ignore_errors=True)
    return report


async def _lane(
    scenario: Scenario, place: Path, seed: int, report: Report, reference: Numbers
) -> Tuning | None:
    """Run a scenario; return None if it has no disk."""
    with ExitStack() as disks:
        try:
            if scenario is full:
                disks.enter_context(mounted(place, DISK))
        except pytest.skip.Exception as skipped:
            report.figures.append(str(skipped))
            return None
        async with tuning(place, report) as made:
            try:
                await scenario(made, random.Random(f"{seed}/{made.name}"), reference)
            except Stuck as stuck:
                made.check(holds=False, otherwise=str(stuck))
            made.check_end(reference)
    return made


def _print_table(ran: list[Tuning]) -> None:
    """Print a row for each volume: the most seconds, and the most that a loss differs by."""
    row = "  {:12} {:>10} {:>13} {:>9} {:>10} {:>9} {:>12} {:>10}  {}"
    heads = ("fine-tunes", "disturbances", "attempts", "takeovers", "cancels", "losses apart")
    print_line(row.format("", *heads, "same bytes", ""))
    for made in ran:
        longest = [
            f"{max(each):.1f} s" if each else "-" for each in (made.takeovers_s, made.cancels_s)
        ]
        figures = (
            made.count,
            made.disturbances,
            made.attempts,
            *longest,
            f"{made.apart:.1g}",
            made.same,
        )
        bad = any(one.startswith(f"{made.name}:") for one in made.report.broken)
        print_line(row.format(made.name, *map(str, figures), "bad" if bad else "good"))
