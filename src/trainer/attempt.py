"""One attempt at a training, from its data to its adapter."""

import shutil
import sys
import time
from pathlib import Path

from safetensors import SafetensorError

from trainer.check import Prepared, check
from trainer.checkpoints import adopt, copy, epoch_adapter
from trainer.events import Events
from trainer.failures import Failure, Stopped, volume_failure
from trainer.interruptions import Interruptions
from trainer.mistakes import BadData
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
from worker.errors import VolumeError
from worker.volume import write_once


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
        attempt = _Attempt(directory, name, interruptions)
        with attempt.events:
            attempt.run(only_check=only_check)
    except Stopped:
        return Exit.STOPPED
    # safetensors and torch have errors of their own for a full volume.
    except (OSError, RuntimeError, SafetensorError, VolumeError) as error:
        if (reason := volume_failure(error)) is None:
            raise
        sys.stderr.write(f"{reason}\n")
        return Exit.VOLUME
    return Exit.OVER


class _Attempt:
    def __init__(self, directory: Path, name: str, interruptions: Interruptions) -> None:
        self._spec = Spec.model_validate_json((directory / SPEC).read_bytes())
        self._place = directory / ATTEMPTS / name
        self._place.mkdir(parents=True, exist_ok=True)
        self._interruptions = interruptions
        checkpoint = adopt(directory / ATTEMPTS, self._place)
        step = checkpoint.step if checkpoint else 0
        self.events = Events(self._place / EVENTS, step)
        if step:
            self.events.tell(f"Resumed at step {step}", step)

    def run(self, *, only_check: bool) -> None:
        """Train, and write what came of it."""
        try:
            outcome = self._outcome(only_check=only_check)
            if outcome is None:
                return
            if outcome.error:
                self.events.tell(outcome.error, level="error")
            self.events.sync()
            write_once(self._place / OUTCOME, outcome.model_dump_json().encode())
        finally:
            # Of no use to another attempt, which may need the room on the volume.
            for left in (self._place / TOKENS, self._place / WRITING):
                shutil.rmtree(left, ignore_errors=True)

    def _outcome(self, *, only_check: bool) -> Outcome | None:
        try:
            prepared = self._check(only=only_check)
            return None if only_check else self._train(prepared)
        except Failure as failure:
            return Outcome(error=str(failure))

    def _train(self, prepared: Prepared) -> Outcome:
        # They import torch, which takes seconds: who has made mistakes needn't wait for it.
        from trainer.loading import load  # noqa: PLC0415 - see above
        from trainer.training import Training  # noqa: PLC0415 - see above

        began = time.monotonic()
        model = load(self._spec)
        self.events.tell(f"Model loaded in {time.monotonic() - began:.1f} s")
        rows = prepared.training, prepared.validation
        training = Training(self._spec, self._place, rows, self.events, self._interruptions)
        self._interruptions.be_patient()
        trained = training.run(model)
        best = epoch_adapter(self._place.parent, self._place, trained.best_step)
        copy(best, self._place / RESULT)
        return Outcome(
            steps=trained.steps,
            best_step=trained.best_step,
            best_loss=trained.best_loss,
            trained_tokens=prepared.checked.tokens * self._spec.epochs,
            batch_size=trained.batch_size,
        )

    def _check(self, *, only: bool) -> Prepared:
        try:
            prepared = check(self._spec, self._place / TOKENS)
        except BadData as bad:
            self._tell(bad.checked)
            count = len(bad.checked.mistakes) + bad.checked.more_mistakes
            first = bad.checked.mistakes[0]
            where = f"{first.file}, line {first.line}" if first.line else first.file
            others = f" (and {count - 1} more mistakes)" if count > 1 else ""
            raise Failure(f"{where}: {first.message}{others}") from bad
        except OSError as error:
            raise VolumeError(f"the volume fails: {error}") from error
        self._tell(prepared.checked, quietly=only)
        return prepared

    def _tell(self, checked: Checked, *, quietly: bool = False) -> None:
        write_once(self._place / CHECKED, checked.model_dump_json().encode())
        if quietly:
            # The attempt that trains tells it.
            return
        for warning in checked.warnings:
            self.events.tell(warning, level="warn")
        if not checked.mistakes:
            self.events.tell(
                f"Data checked: {checked.rows} rows to train on with {checked.tokens} tokens, "
                f"{checked.validation_rows} held out, {checked.cut_rows} cut"
            )
