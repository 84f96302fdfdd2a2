"""Publishes what a training has made, so that every worker serves the adapters by their names."""

import asyncio
import re
import shutil
import time
from pathlib import Path

from trainer.spec import ATTEMPTS, RESULT, Outcome
from worker.errors import VolumeError, WorkerError
from worker.fine_tunes.record import FineTune
from worker.fine_tunes.request import Checkpoint, Failed, FineTuneResult, Publishing, StoredFineTune
from worker.fine_tunes.workshop import Workshop
from worker.volume import adapters, failures, write_once
from worker.volume.adapters import MADE, Made, maker
from worker.volume.directories import appear

# Characters of a name, so that it is one with a number, too, and so are those of checkpoints.
LONGEST = 108
_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")


async def finished(fine_tune: FineTune, workshop: Workshop, attempt: Path) -> FineTuneResult:
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
    outcome = await asyncio.to_thread(fine_tune.outcome_of, attempt)
    if outcome is None or outcome.error is not None:
        raise await asyncio.to_thread(_refusal, fine_tune, outcome)
    try:
        await workshop.check_adapter(attempt / RESULT)
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


def _published(
    fine_tune: FineTune, workshop: Workshop, attempt: Path, outcome: Outcome
) -> FineTuneResult:
    root, request = workshop.adapters, fine_tune.request
    decided = fine_tune.publishing
    if decided is None:
        name = reserve(root, name_of(request), fine_tune.id)
        decided = fine_tune.decide(Publishing(name=name, attempt=attempt.name))
        if decided is None:
            # It was cancelled while the adapter was checked.
            release(root, name)
            return FineTuneResult(status="cancelled")
    chosen = fine_tune.directory / ATTEMPTS / decided.attempt
    checkpoints = []
    for step, source in fine_tune.epochs(chosen).items():
        name = decided.name
        # The best one's adapter is the result.
        if step != outcome.best_step:
            name = checkpoint_name(name, step)
            publish(root, name, source, request.base, fine_tune.id)
        checkpoints.append(Checkpoint(step=step, name=name))
    publish(root, decided.name, chosen / RESULT, request.base, fine_tune.id)
    # Before the end: after it nobody would come back to do it.
    release(root, decided.name)
    return FineTuneResult(
        status="succeeded",
        adapter=decided.name,
        checkpoints=tuple(checkpoints),
        result_file_ids=tuple(workshop.write_results(fine_tune)),
        trained_tokens=outcome.trained_tokens,
        steps=outcome.steps,
    )


def name_of(request: StoredFineTune) -> str:
    """Return the name of the adapter that a fine-tune makes, if no other has it."""
    made_at = time.strftime("%y%m%d-%H%M%S", time.gmtime(request.created_at))
    model = _OTHERS.sub("-", request.base.rstrip("/").rpartition("/")[-1]).lstrip("._-") or "model"
    suffix = _OTHERS.sub("-", request.suffix or "")
    end = f".{suffix}.{made_at}" if suffix else f".{made_at}"
    return f"{model[: LONGEST - len(end)]}{end}"


def checkpoint_name(name: str, step: int) -> str:
    """Return the name of the adapter of an epoch."""
    return f"{name}.ckpt-{step}"


def reserve(root: Path, name: str, id: str) -> str:
    """Return a name that no other adapter has, nor is going to have: with a number, if need be.

    Args:
        root: the directory of all adapters.
        name: the one that is wanted.
        id: of the fine-tune.

    Raises:
        VolumeError: the volume can't be written to.
    """
    number, free = 1, name
    while not _reserved(root, free, id):
        number += 1
        free = f"{name}-{number}"
    return free


def _reserved(root: Path, name: str, id: str) -> bool:
    mark = _mark(root, name)
    with failures():
        ours = write_once(mark, id.encode()) or mark.read_bytes() == id.encode()
        if not ours:
            return False
        # After the mark: whoever had it before may have published, and then removed it.
        taken = (root / name).exists() and maker(root, name) != id
        if taken:
            mark.unlink()
        return not taken


def publish(root: Path, name: str, source: Path, base: str, id: str) -> None:
    """Make an adapter appear under its name; one that is there already stays.

    Args:
        root: the directory of all adapters.
        name: reserved for it.
        source: the directory with its files.
        base: the name of the model that it is for.
        id: of the fine-tune.

    Raises:
        VolumeError: the volume can't be written to; then nothing has appeared.
    """
    if maker(root, name) == id:
        return
    with failures():
        for left in root.glob(f".{name}.*"):
            shutil.rmtree(left, ignore_errors=True)
        with appear(root / name) as hidden:
            # The trainer knows the model by the directory that it lies in on this machine.
            adapters.copy(source, hidden, base)
            (hidden / MADE).write_text(Made(id=id).model_dump_json())
    # Another worker that went on with this fine-tune may have been faster, but nobody else.
    if maker(root, name) != id:
        raise VolumeError("the volume has another adapter in the place of this one")


def release(root: Path, name: str) -> None:
    """Remove the mark of a name whose adapter has been published."""
    with failures():
        _mark(root, name).unlink(missing_ok=True)


def _mark(root: Path, name: str) -> Path:
    return root / f".{name}"
