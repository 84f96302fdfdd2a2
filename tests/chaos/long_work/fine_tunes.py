"""Fine-tunes whose trainers and workers are killed, frozen, doubled and cancelled.

Full disks, and several at one worker: unit/trainer/test_process.py, unit/fine_tunes/test_step.py.
"""

import asyncio
import random
import shutil
import signal
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable

import psutil
from support.fine_tunes import records_of

from chaos.long_work.crew import add_takeovers, empty
from chaos.long_work.tuning import Numbers, Tuning, lives, moments, own_memory, tuning
from chaos.report import Report
from trainer.spec import CHECKPOINTS
from worker.errors import Conflict
from worker.fine_tunes.record import FineTune

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
    made.check(grown < GROWTH, f"the worker has grown by {grown / MIB:.1f} MB")
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
        made.check(not fine_tune.ended(), f"it ended before the kill of the {kill}")
        if when != "publishing":
            await made.taken_over(fine_tune, before)


async def cancelled(made: Tuning, rng: random.Random, reference: Numbers) -> None:
    """Cancel in each state; while an adapter is published that is refused."""
    await made.ready(made.start())
    for status in ("validating_files", "running", "queued", "paused"):
        await _cancelled_in(made, status, rng.uniform(0, reference.seconds / 2))
    job, fine_tune = await made.begin()
    await made.until(lambda: fine_tune.publishing, "it is never published")
    try:
        fine_tune.cancel()
        made.check(False, "cancelled while it was published")
    except Conflict as refusal:
        made.check("is being published" in str(refusal), f"it ended before the cancel: {refusal}")
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
    made.check(fine_tune.status == status, f"{fine_tune.status}, not {status}")
    await _cancel(made, fine_tune)
    await made.ended(job)


async def _cancel(made: Tuning, fine_tune: FineTune) -> None:
    since = time.monotonic()
    # As a route does it.
    fine_tune.cancel()
    records_of(fine_tune).settle(fine_tune)
    await made.until(fine_tune.ended, "it does not end")
    await made.until(lambda: not made.trainers(fine_tune), "its trainer does not end")
    took_s = time.monotonic() - since
    made.check(took_s < CANCEL_S, f"cancelled after {took_s:.1f} s")
    result = fine_tune.result
    holds = result is not None and (result.status, result.adapter) == ("cancelled", None)
    made.check(holds, f"not cancelled: {result}")


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
    await made.taken_over(fine_tune, 1)
    await asyncio.sleep(rng.uniform(0, 2))
    for one in rng.sample(stopped, len(stopped)):
        one.send_signal(signal.SIGCONT)
    trainers = [one for one in stopped if one in made.trainers(fine_tune)]
    since = time.monotonic()
    await made.until(lambda: not any(map(lives, trainers)), "the thawed trainer does not end")
    took_s = time.monotonic() - since
    made.check(took_s < CANCEL_S, f"a thawed trainer lived for {took_s:.1f} s")
    await made.ended(job, again)


async def doubled(made: Tuning, _: random.Random, __: Numbers) -> None:
    """Send two jobs for one fine-tune, to two workers."""
    names = await made.two()
    job, fine_tune = await made.begin()
    await made.ended(job, made.submit(id=fine_tune.id))
    taken = [made.emulator.queue.worker(name).jobs for name in names]
    attempts = len(fine_tune.attempts())
    made.check((taken, attempts) == ([1, 1], 1), f"{taken} jobs, {attempts} begun")


# Those of a line run at once.
STAGES: tuple[tuple[Scenario, ...], ...] = (
    (retried, taken_over, restarted),
    (cancelled, frozen, doubled),
)


async def run(args: Namespace) -> Report:
    """Run one undisturbed, and disturb others, whose results have to be the same."""
    report = Report(f"fine-tunes, seed {args.seed}")
    place = empty(args.logs / "fine-tunes")
    async with tuning(place / "undisturbed", report) as made:
        reference, memory = await undisturbed(made)
        made.check_end(reference)

    async def ran(scenario: Scenario) -> Tuning:
        async with tuning(place / scenario.__name__, report) as made:
            await scenario(made, random.Random(f"{args.seed}/{made.root.name}"), reference)
            made.check_end(reference)
        return made

    lanes = [made]
    for stage in STAGES:
        lanes += await asyncio.gather(*map(ran, stage))
    report.figures += [
        f"{reference.steps} steps in {reference.seconds:.0f} s",
        f"memory {memory}",
        f"{sum(one.count for one in lanes)} fine-tunes in {sum(one.attempts for one in lanes)}"
        f" attempts, losses apart {max(one.apart for one in lanes):.1g}",
    ]
    add_takeovers(report, "takeovers", lanes)
    shutil.rmtree(place, ignore_errors=True)
    return report
