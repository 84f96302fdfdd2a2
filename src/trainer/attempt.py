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
from trainer.output import (
    EventLog,
    copy_directory_atomically,
    copy_newest_checkpoint,
    find_epoch_adapter,
)
from trainer.tokens import TRAINING, VALIDATION, TokenRows, check_and_tokenize_in_process
from worker.fine_tunes.spec import (
    ATTEMPTS_DIR,
    CHECK_FILE,
    EVENTS_FILE,
    OUTCOME_FILE,
    RESULT_DIR,
    SCRATCH_DIR,
    SPEC_FILE,
    TOKENS_DIR,
    CheckResult,
    ExitStatus,
    Outcome,
    Spec,
)
from worker.volume.durable import write_file


def run_attempt(
    directory: Path, name: str, watcher: SigtermWatcher, *, only_check: bool = False
) -> int:
    """Check the rows, train from the newest checkpoint of all attempts, return the exit status.

    Args:
        directory: Directory of the fine-tune, with its spec.
        name: Name of the attempt.
        watcher: Watcher for SIGTERM, which stops the attempt.
        only_check: Whether to stop after the check; an outcome is then written only for mistakes.

    Raises:
        RuntimeError: The attempt has crashed. Other exceptions of the attempt are crashes, too.
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
            _check_and_train(spec, attempt, events, watcher, only_check=only_check)
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
) -> None:
    try:
        result = _check_rows(spec, attempt, events, only_check=only_check)
        if only_check:
            return
        outcome = _train(spec, attempt, events, watcher, result)
    except TrainingFailure as failure:
        events.write(str(failure), level="error")
        outcome = Outcome(error=str(failure))
    finally:
        # Another attempt doesn't need these files, and may need the disk space.
        for temporary in (attempt / TOKENS_DIR, attempt / SCRATCH_DIR):
            shutil.rmtree(temporary, ignore_errors=True)
    events.sync()
    write_file(attempt / OUTCOME_FILE, outcome.model_dump_json().encode())


def _check_rows(spec: Spec, attempt: Path, events: EventLog, *, only_check: bool) -> CheckResult:
    try:
        result = check_and_tokenize_in_process(spec, attempt / TOKENS_DIR)
    except OSError as error:
        raise VolumeFailure(f"the volume fails: {error}") from error
    write_file(attempt / CHECK_FILE, result.model_dump_json().encode())
    if result.mistakes:
        count = len(result.mistakes) + result.more_mistakes
        first = result.mistakes[0]
        location = f"{first.file}, line {first.line}" if first.line else first.file
        others = f" (and {count - 1} more mistakes)" if count > 1 else ""
        raise TrainingFailure(f"{location}: {first.message}{others}")
    # After a check without training, another attempt trains and writes the events below.
    if not only_check:
        for warning in result.warnings:
            events.write(warning, level="warn")
        events.write(
            f"Data checked: {result.rows} rows to train on with {result.tokens} tokens, "
            f"{result.validation_rows} held out, {result.cut_rows} cut"
        )
    return result


def _train(
    spec: Spec, attempt: Path, events: EventLog, watcher: SigtermWatcher, result: CheckResult
) -> Outcome:
    # These modules import torch, which takes seconds. Mistakes in the rows are reported earlier.
    from trainer.loading import load_model  # noqa: PLC0415 - see above
    from trainer.training import Training  # noqa: PLC0415 - see above

    start = time.monotonic()
    model = load_model(spec)
    events.write(f"Model loaded in {time.monotonic() - start:.1f} s")
    rows = TokenRows(attempt / TOKENS_DIR, TRAINING), TokenRows(attempt / TOKENS_DIR, VALIDATION)
    training = Training(spec, attempt, rows, events, watcher)
    watcher.defer_exit()
    outcome = training.run(model)
    copy_directory_atomically(
        find_epoch_adapter(attempt.parent, attempt, outcome.best_step), attempt / RESULT_DIR
    )
    return outcome.model_copy(update={"trained_tokens": result.tokens * spec.epochs})
