"""One attempt at a training, from its data to its adapter."""

import shutil
import sys
import time
from pathlib import Path

from safetensors import SafetensorError

from trainer.checkpoints import adopt, copy, epoch_adapter, write
from trainer.endings import Failure, Interruptions, Stopped, VolumeFailure, volume_failure
from trainer.events import Events
from trainer.prepare import TRAINING, VALIDATION, check
from trainer.spec import (
    ATTEMPTS,
    CHECKED,
    EVENTS,
    OUTCOME,
    RESULT,
    SPEC,
    TOKENS,
    WRITING,
    Checked,
    Exit,
    Outcome,
    Spec,
)


def run(
    directory: Path, name: str, interruptions: Interruptions, *, only_check: bool = False
) -> int:
    """Train, unless there are mistakes in the data.

    Args:
        directory: of the fine-tune, with its spec.
        name: of the attempt.
        interruptions: end it, or ask for its end.
        only_check: train nothing, and leave no outcome unless there are mistakes.

    Returns:
        How the process is to end.

    Raises:
        RuntimeError: a defect, as any other error is.
    """
    try:
        spec = Spec.model_validate_json((directory / SPEC).read_bytes())
        place = directory / ATTEMPTS / name
        place.mkdir(parents=True, exist_ok=True)
        checkpoint = adopt(directory / ATTEMPTS, place)
        step = checkpoint.step if checkpoint else 0
        with Events(place / EVENTS, step) as events:
            if step:
                events.write(f"Resumed at step {step}", step)
            _attempt(spec, place, events, interruptions, only_check=only_check)
    except Stopped:
        return Exit.STOPPED
    # safetensors and torch have errors of their own for a full volume.
    except (OSError, RuntimeError, SafetensorError, VolumeFailure) as error:
        if (reason := volume_failure(error)) is None:
            raise
        sys.stderr.write(f"{reason}\n")
        return Exit.VOLUME
    return Exit.OVER


def _attempt(
    spec: Spec, place: Path, events: Events, interruptions: Interruptions, *, only_check: bool
) -> None:
    try:
        checked = _check(spec, place, events, quietly=only_check)
        if only_check:
            return
        outcome = _train(spec, place, events, interruptions, checked)
    except Failure as failure:
        events.write(str(failure), level="error")
        outcome = Outcome(error=str(failure))
    finally:
        # Of no use to another attempt, which may need the room on the volume.
        for left in (place / TOKENS, place / WRITING):
            shutil.rmtree(left, ignore_errors=True)
    events.sync()
    write(place / OUTCOME, outcome.model_dump_json())


def _check(spec: Spec, place: Path, events: Events, *, quietly: bool) -> Checked:
    """Write the rows as tokens, and the events of it, unless the attempt that trains will."""
    try:
        checked = check(spec, place / TOKENS)
    except OSError as error:
        raise VolumeFailure(f"the volume fails: {error}") from error
    write(place / CHECKED, checked.model_dump_json())
    if checked.mistakes:
        count = len(checked.mistakes) + checked.more_mistakes
        first = checked.mistakes[0]
        where = f"{first.file}, line {first.line}" if first.line else first.file
        others = f" (and {count - 1} more mistakes)" if count > 1 else ""
        raise Failure(f"{where}: {first.message}{others}")
    if not quietly:
        for warning in checked.warnings:
            events.write(warning, level="warn")
        events.write(
            f"Data checked: {checked.rows} rows to train on with {checked.tokens} tokens, "
            f"{checked.validation_rows} held out, {checked.cut_rows} cut"
        )
    return checked


def _train(
    spec: Spec, place: Path, events: Events, interruptions: Interruptions, checked: Checked
) -> Outcome:
    # They import torch, which takes seconds: mistakes in the rows are reported before.
    from trainer.batches import Packed  # noqa: PLC0415 - see above
    from trainer.loading import load  # noqa: PLC0415 - see above
    from trainer.training import Training  # noqa: PLC0415 - see above

    began = time.monotonic()
    model = load(spec)
    events.write(f"Model loaded in {time.monotonic() - began:.1f} s")
    rows = Packed(place / TOKENS, TRAINING), Packed(place / TOKENS, VALIDATION)
    training = Training(spec, place, rows, events, interruptions)
    interruptions.be_patient()
    outcome = training.run(model)
    copy(epoch_adapter(place.parent, place, outcome.best_step), place / RESULT)
    return outcome.model_copy(update={"trained_tokens": checked.tokens * spec.epochs})
