"""Runs one attempt of a training, from its rows to its adapter."""

import shutil
import sys
import time
from pathlib import Path

from safetensors import SafetensorError

from trainer.interruptions import (
    SigtermWatcher,
    StoppedBySigterm,
    TrainingFailure,
    VolumeFailure,
    describe_volume_failure,
)
from trainer.output import EventLog, copy_newest_checkpoint
from trainer.tokens import TRAINING, VALIDATION, TokenRows, check_and_tokenize_in_process
from worker.fine_tunes.spec import (
    ATTEMPTS_DIR,
    EVENTS_FILE,
    OUTCOME_FILE,
    SCRATCH_DIR,
    SPEC_FILE,
    TOKENS_DIR,
    ExitStatus,
    Outcome,
    Spec,
)
from worker.volume.durable import write_file


def run_attempt(
    directory: Path, name: str, watcher: SigtermWatcher, *, only_check: bool = False
) -> int:
    """Check the rows, train from the newest checkpoint of all attempts, return the exit status.

    ``directory`` is the fine-tune's, with its spec. An exception means that the attempt has
    crashed.
    """
    try:
        spec = Spec.model_validate_json((directory / SPEC_FILE).read_bytes())
        attempt = directory / ATTEMPTS_DIR / name
        attempt.mkdir(parents=True, exist_ok=True)
        checkpoint = copy_newest_checkpoint(directory / ATTEMPTS_DIR, attempt)
        step = checkpoint.step if checkpoint else 0
        with EventLog(attempt / EVENTS_FILE, step) as events:
            if step:
                events.write(f"Resumed at step {step}", step)
            try:
                outcome = _check_and_train(spec, attempt, events, watcher, only_check=only_check)
            finally:
                # Another attempt doesn't need these files, and may need the disk space.
                for temporary in (attempt / TOKENS_DIR, attempt / SCRATCH_DIR):
                    shutil.rmtree(temporary, ignore_errors=True)
            if outcome.error is not None:
                events.write(outcome.error, level="error")
            events.sync()
            _write_outcome(attempt, outcome)
    except StoppedBySigterm:
        return ExitStatus.STOPPED
    # safetensors and torch raise their own exceptions for a full volume.
    except (OSError, RuntimeError, SafetensorError, VolumeFailure) as error:
        if (reason := describe_volume_failure(error)) is None:
            raise
        sys.stderr.write(f"{reason}\n")
        return ExitStatus.VOLUME_FAILURE
    return ExitStatus.FINISHED


def _check_and_train(
    spec: Spec, attempt: Path, events: EventLog, watcher: SigtermWatcher, *, only_check: bool
) -> Outcome:
    try:
        check = check_and_tokenize_in_process(spec, attempt / TOKENS_DIR)
    except OSError as error:
        raise VolumeFailure(f"the volume fails: {error}") from error
    if check.mistakes:
        count = len(check.mistakes) + check.more_mistakes
        first = check.mistakes[0]
        location = f"{first.file}, line {first.line}" if first.line else first.file
        others = f" (and {count - 1} more mistakes)" if count > 1 else ""
        return Outcome(check=check, is_over=True, error=f"{location}: {first.message}{others}")
    if only_check:
        # Another attempt trains, and writes the events below.
        return Outcome(check=check)
    _write_outcome(attempt, Outcome(check=check))
    for warning in check.warnings:
        events.write(warning, level="warn")
    events.write(
        f"Data checked: {check.rows} rows to train on with {check.tokens} tokens, "
        f"{check.validation_rows} held out, {check.cut_rows} cut"
    )

    # These modules import torch, which takes seconds. Mistakes in the rows are reported earlier.
    from trainer.loading import load_model  # noqa: PLC0415 - see above
    from trainer.training import Training  # noqa: PLC0415 - see above

    try:
        start = time.monotonic()
        model = load_model(spec)
        events.write(f"Model loaded in {time.monotonic() - start:.1f} s")
        tokens = attempt / TOKENS_DIR
        rows = TokenRows(tokens, TRAINING), TokenRows(tokens, VALIDATION)
        training = Training(spec, attempt, rows, events, watcher)
        watcher.defer_exit()
        outcome = training.run(model)
    except TrainingFailure as failure:
        return Outcome(check=check, is_over=True, error=str(failure))
    trained_tokens = check.tokens * spec.epochs
    return outcome.model_copy(update={"check": check, "trained_tokens": trained_tokens})


def _write_outcome(attempt: Path, outcome: Outcome) -> None:
    write_file(attempt / OUTCOME_FILE, outcome.model_dump_json().encode())
