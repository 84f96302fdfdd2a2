"""What becomes of a training that is over: its adapters are published, its results are files."""

import asyncio
import time
from pathlib import Path

from trainer.spec import ATTEMPTS, RESULT, Outcome
from worker.errors import VolumeError, WorkerError
from worker.fine_tunes import attempt as attempts_of
from worker.fine_tunes import publish
from worker.fine_tunes.crashes import Failed
from worker.fine_tunes.request import Checkpoint, Publishing, Result
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.workshop import Workshop


async def finished(fine_tune: FineTune, workshop: Workshop, attempt: Path) -> Result:
    """Publish what an attempt has made, and return how the fine-tune ends.

    It may be interrupted anywhere: whoever calls it again goes on.

    Args:
        fine_tune: whose lease is held.
        workshop: of the worker.
        attempt: that has ended the training.

    Raises:
        Failed: it has made nothing that can be served.
        WorkerError: the volume fails.
    """
    outcome = await asyncio.to_thread(attempts_of.outcome_of, attempt)
    if outcome is None or outcome.error is not None:
        raise await asyncio.to_thread(_refusal, fine_tune, outcome)
    try:
        await workshop.check(attempt / RESULT)
    except VolumeError:
        raise
    except WorkerError as error:
        message = f"The adapter can't be served: {error.message}"
        raise Failed("training_failed", message) from error
    return await asyncio.to_thread(_published, fine_tune, workshop, attempt, outcome)


def _refusal(fine_tune: FineTune, outcome: Outcome | None) -> Failed:
    """Return why a training has made nothing."""
    checked = fine_tune.checked
    mistakes = checked.mistakes if checked else ()
    error = outcome.error if outcome else None
    message = error or "The training has left nothing behind."
    if mistakes:
        return Failed(f"invalid_{mistakes[0].file}", message, mistakes[0].file)
    return Failed("training_failed", message)


def _published(fine_tune: FineTune, workshop: Workshop, attempt: Path, outcome: Outcome) -> Result:
    root, request = workshop.adapters, fine_tune.request
    decided = fine_tune.publishing
    if decided is None:
        name = publish.reserve(root, publish.name_of(request), fine_tune.id)
        decided = fine_tune.decide(Publishing(name=name, attempt=attempt.name))
        if decided is None:
            # It was cancelled while the adapter was checked.
            publish.release(root, name)
            return Result(status="cancelled", at=int(time.time()))
    chosen = fine_tune.directory / ATTEMPTS / decided.attempt
    checkpoints = []
    for step, source in attempts_of.epochs_of(fine_tune.attempts(), chosen).items():
        name = decided.name
        # The best one's adapter is the result.
        if step != outcome.best_step:
            name = publish.checkpoint_name(name, step)
            publish.publish(root, name, source, request.base, fine_tune.id)
        checkpoints.append(Checkpoint(step=step, name=name))
    publish.publish(root, decided.name, chosen / RESULT, request.base, fine_tune.id)
    # Before the end: after it nobody would come back to do it.
    publish.release(root, decided.name)
    return Result(
        status="succeeded",
        at=int(time.time()),
        adapter=decided.name,
        checkpoints=tuple(checkpoints),
        result_file_ids=tuple(workshop.results(fine_tune)),
        trained_tokens=outcome.trained_tokens,
        steps=outcome.steps,
    )
