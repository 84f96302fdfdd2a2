"""Fine-tunes whose trainers and workers are killed, frozen, duplicated and cancelled.

Full disks are tested in unit/trainer/test_process.py, and several fine-tunes at one worker in
unit/fine_tunes/test_step.py.
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

from chaos.long_work.crew import add_takeovers, make_empty_folder
from chaos.long_work.tuning import (
    TrainingResult,
    Tuning,
    is_alive,
    moment_checks,
    open_tuning,
    private_memory,
)
from chaos.report import Report
from emulator import LostJobHandling
from worker.errors import Conflict
from worker.fine_tunes.record import FineTune
from worker.fine_tunes.spec import CHECKPOINTS_DIR

MIB = 2**20
# Bytes by which a training may increase the memory of the serving process.
MAX_GROWTH = 5 * MIB
# Seconds within which a cancelled fine-tune must end and a thawed trainer must exit.
CANCEL_S = 5.0
# The process to kill and the moment. "any": within half of the duration of a fine-tune. "writing":
# while it writes a checkpoint, one or two epochs after the checkpoint before the last kill.
RETRY_KILLS = ("trainer checking", "worker any", "trainer writing", "worker publishing")
TAKEOVER_KILLS = ("worker checking", "trainer any", "worker writing")
RESTART_KILLS = ("trainer writing", "worker any", "worker writing")
SERVE = ("--train", "--serve", "--port", "0")

Scenario = Callable[[Tuning, random.Random, TrainingResult], Awaitable[None]]


async def run_undisturbed(tuning: Tuning) -> tuple[TrainingResult, str]:
    """Run a fine-tune next to an engine; return its result and a description of the memory use."""
    name = tuning.start("--serve", "--port", "0")
    fine_tune = await tuning.create_over_http(name)
    worker = psutil.Process(tuning.workers[name].process.pid)
    before = highest = private_memory(worker)
    while not fine_tune.has_ended():
        await asyncio.sleep(0.1)
        highest = max(highest, private_memory(worker))
    growth = private_memory(worker) - before
    tuning.check(growth < MAX_GROWTH, f"the worker has grown by {growth / MIB:.1f} MB")
    memory_text = (
        f"{before / MIB:.0f} MB, {(highest - before) / MIB:+.1f} during, {growth / MIB:+.1f} after"
    )
    return tuning.read_result(fine_tune), memory_text


async def retry_after_kills(tuning: Tuning, rng: random.Random, reference: TrainingResult) -> None:
    """Kill processes sequentially; the platform delivers the job again to another worker."""
    tuning.start()
    job, fine_tune = await tuning.create_by_job()
    await _kill_repeatedly(tuning, rng, reference, fine_tune, RETRY_KILLS)
    await tuning.wait_for_jobs(job)


async def take_over_after_kills(
    tuning: Tuning, rng: random.Random, reference: TrainingResult
) -> None:
    """Kill processes sequentially while another worker is idle, and has no job."""
    await tuning.start_two()
    _, fine_tune = await tuning.create_by_job()
    await _kill_repeatedly(tuning, rng, reference, fine_tune, TAKEOVER_KILLS)
    await tuning.wait_until(fine_tune.has_ended, "it does not end")


async def restart_after_kills(
    tuning: Tuning, rng: random.Random, reference: TrainingResult
) -> None:
    """Kill the processes of a server sequentially; a restarted server resumes the fine-tune."""
    fine_tune = await tuning.create_over_http(tuning.start(*SERVE))
    await _kill_repeatedly(tuning, rng, reference, fine_tune, RESTART_KILLS, *SERVE)
    await tuning.wait_until(fine_tune.has_ended, "it does not end")


async def _kill_repeatedly(
    tuning: Tuning,
    rng: random.Random,
    reference: TrainingResult,
    fine_tune: FineTune,
    kills: tuple[str, ...],
    *options: str,
) -> None:
    before = 0
    for kill in kills:
        process_name, moment = kill.split()
        if moment == "writing":
            await tuning.wait_for_checkpoint(fine_tune, rng.choice((1, 2)))
        is_reached = moment_checks(fine_tune, before)["begun" if moment == "any" else moment]
        await tuning.wait_until(is_reached, f"{kill}: never")
        if moment == "any":
            await tuning.wait_unless_publishing(fine_tune, rng.uniform(0, reference.seconds / 2))
        before = len(fine_tune.attempt_paths())
        if process_name == "trainer":
            tuning.kill_trainer()
        else:
            await tuning.kill(tuning.find_holder(fine_tune))
            tuning.start(*options)
        tuning.check(not fine_tune.has_ended(), f"it ended before the kill of the {kill}")
        if moment != "publishing":
            await tuning.wait_for_takeover(fine_tune, before)


async def cancel_in_each_state(
    tuning: Tuning, rng: random.Random, reference: TrainingResult
) -> None:
    """Cancel in each state; during the publication of an adapter the cancel is refused."""
    await tuning.wait_until_ready(tuning.start())
    for status in ("validating_files", "running", "queued", "paused"):
        await _cancel_in_state(tuning, status, rng.uniform(0, reference.seconds / 2))
    job, fine_tune = await tuning.create_by_job()
    await tuning.wait_until(lambda: fine_tune.adapter_choice, "it is never published")
    try:
        fine_tune.cancel()
        tuning.check(False, "cancelled while it was published")
    except Conflict as error:
        tuning.check("is being published" in str(error), f"it ended before the cancel: {error}")
    await tuning.wait_for_jobs(job)


async def _cancel_in_state(tuning: Tuning, status: str, seconds: float) -> None:
    job, fine_tune = await tuning.create_by_job()
    first_status = "validating_files" if status == "validating_files" else "running"
    await tuning.wait_until(lambda: fine_tune.status == first_status, f"never {first_status}")
    if status == "running":
        await tuning.wait_unless_publishing(fine_tune, seconds)
    elif status == "paused":
        fine_tune.pause()
        await tuning.wait_for_jobs(job)
    elif status == "queued":
        fine_tune.pause()
        await tuning.wait_for_jobs(job)
        # There is no job for it, so it stays queued.
        fine_tune.resume()
    tuning.check(fine_tune.status == status, f"{fine_tune.status}, not {status}")
    await _cancel(tuning, fine_tune)
    await tuning.wait_for_jobs(job)


async def _cancel(tuning: Tuning, fine_tune: FineTune) -> None:
    started_at = time.monotonic()
    # The route does the same.
    fine_tune.cancel()
    records_of(fine_tune).end_if_due(fine_tune)
    await tuning.wait_until(fine_tune.has_ended, "it does not end")
    await tuning.wait_until(lambda: not tuning.find_trainers(fine_tune), "its trainer does not end")
    seconds = time.monotonic() - started_at
    tuning.check(seconds < CANCEL_S, f"cancelled after {seconds:.1f} s")
    result = fine_tune.result
    is_ok = result is not None and (result.status, result.adapter) == ("cancelled", None)
    tuning.check(is_ok, f"not cancelled: {result}")


async def freeze_worker(tuning: Tuning, rng: random.Random, _: TrainingResult) -> None:
    """Stop a worker and its trainer until another worker has taken over, then continue both."""
    await tuning.start_two()
    job, fine_tune = await tuning.create_by_job()
    await tuning.wait_until(
        lambda: any(fine_tune.directory.glob(f"*/*/{CHECKPOINTS_DIR}/*")), "no checkpoint"
    )
    worker = psutil.Process(tuning.workers[tuning.find_holder(fine_tune)].process.pid)
    processes = [worker, *worker.children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    await tuning.wait_for_takeover(fine_tune, 1)
    await asyncio.sleep(rng.uniform(0, 2))
    for process in rng.sample(processes, len(processes)):
        process.send_signal(signal.SIGCONT)
    trainers = [process for process in processes if process in tuning.find_trainers(fine_tune)]
    started_at = time.monotonic()
    await tuning.wait_until(
        lambda: not any(map(is_alive, trainers)), "the thawed trainer does not end"
    )
    seconds = time.monotonic() - started_at
    tuning.check(seconds < CANCEL_S, f"a thawed trainer lived for {seconds:.1f} s")
    await tuning.wait_for_jobs(job)


async def run_job_twice(tuning: Tuning, _: random.Random, __: TrainingResult) -> None:
    """Send two jobs for one fine-tune to two workers."""
    names = await tuning.start_two()
    job, fine_tune = await tuning.create_by_job()
    await tuning.wait_for_jobs(job, tuning.submit(id=fine_tune.id))
    job_counts = [tuning.emulator.queue.get_worker(name).jobs for name in names]
    attempts = len(fine_tune.attempt_paths())
    tuning.check((job_counts, attempts) == ([1, 1], 1), f"{job_counts} jobs, {attempts} begun")


# The scenarios of a stage run concurrently.
STAGES: tuple[tuple[Scenario, ...], ...] = (
    (retry_after_kills, take_over_after_kills, restart_after_kills),
    (cancel_in_each_state, freeze_worker, run_job_twice),
)


async def run(args: Namespace) -> Report:
    """Run one undisturbed fine-tune and disturbed ones, whose results must be the same."""
    report = Report(f"fine-tunes, seed {args.seed}")
    folder = make_empty_folder(args.logs / "fine-tunes")
    async with open_tuning(folder / "undisturbed", report) as tuning:
        reference, memory = await run_undisturbed(tuning)
        tuning.check_end(reference)

    async def run_scenario(scenario: Scenario) -> Tuning:
        is_retried = scenario is retry_after_kills
        lost_as = LostJobHandling.REQUEUED if is_retried else LostJobHandling.FAILED
        async with open_tuning(folder / scenario.__name__, report, lost_as) as tuning:
            await scenario(tuning, random.Random(f"{args.seed}/{tuning.root.name}"), reference)
            tuning.check_end(reference)
        return tuning

    tunings = [tuning]
    for stage in STAGES:
        tunings += await asyncio.gather(*map(run_scenario, stage))
    count, attempts = sum(each.count for each in tunings), sum(each.attempts for each in tunings)
    report.figures += [
        f"{reference.steps} steps in {reference.seconds:.0f} s",
        f"memory {memory}",
        f"{count} fine-tunes in {attempts} attempts",
        f"losses differ by up to {max(each.loss_difference for each in tunings):.1g}",
    ]
    add_takeovers(report, "takeovers", tunings)
    shutil.rmtree(folder, ignore_errors=True)
    return report
