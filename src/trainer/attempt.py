"""Runs one attempt of a training, from its rows to its adapter."""

import shutil
import sys
import time
from pathlib import Path

from safetensors import SafetensorError

from trainer.checkpoints import (
    copy_directory,
    copy_newest_checkpoint,
    find_epoch_adapter,
    write_file,
)
from trainer.events import EventLog
from trainer.interruptions import (
    SigtermWatcher,
    StoppedBySigterm,
    TrainingFailure,
    VolumeFailure,
    describe_volume_failure,
)
from trainer.prepare import TRAINING, VALIDATION, check_in_process
from trainer.spec import (
    ATTEMPTS,
    CHECK_RESULT,
    EVENTS,
    OUTCOME,
    RESULT,
    SPEC,
    TOKENS,
    WRITING,
    CheckResult,
    ExitStatus,
    Outcome,
    Spec,
)


def run_attempt(
    directory: Path, name: str, watcher: SigtermWatcher, *, only_check: bool = False
) -> int:
    """Check the rows and, if they have no mistakes, train from the newest checkpoint.

    The checkpoint may be from any attempt of the fine-tune.

    Args:
        directory: Directory of the fine-tune, with its spec.
        name: Name of the attempt.
        watcher: Watcher for SIGTERM, which stops the attempt.
        only_check: Whether to stop after the check of the rows. No outcome is then written unless
            the
            rows have mistakes.

    Returns:
        The exit status of the process.

    Raises:
        RuntimeError: The attempt has crashed. Other exceptions of the attempt are crashes, too.
    """
    try:
        spec = Spec.model_validate_json((directory / SPEC).read_bytes())
        attempt = directory / ATTEMPTS / name
        attempt.mkdir(parents=True, exist_ok=True)
        checkpoint = copy_newest_checkpoint(directory / ATTEMPTS, attempt)
        step = checkpoint.step if checkpoint else 0
        with EventLog(attempt / EVENTS, step) as events:
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
        result = _check(spec, attempt, events, quietly=only_check)
        if only_check:
            return
        outcome = _train(spec, attempt, events, watcher, result)
    except TrainingFailure as failure:
        events.write(str(failure), level="error")
        outcome = Outcome(error=str(failure))
    finally:
        # Another attempt doesn't need these files, and may need the disk space.
        for temporary in (attempt / TOKENS, attempt / WRITING):
            shutil.rmtree(temporary, ignore_errors=True)
    events.sync()
    write_file(attempt / OUTCOME, outcome.model_dump_json())


def _check(spec: Spec, attempt: Path, events: EventLog, *, quietly: bool) -> CheckResult:
    """Check the rows, write them as tokens, and write the result of the check.

    No events are written if the attempt only checks: the attempt that trains will write them.

    Raises:
        TrainingFailure: The rows have mistakes.
        VolumeFailure: A file can't be read or written.
    """
    try:
        result = check_in_process(spec, attempt / TOKENS)
    except OSError as error:
        raise VolumeFailure(f"the volume fails: {error}") from error
    write_file(attempt / CHECK_RESULT, result.model_dump_json())
    if result.mistakes:
        count = len(result.mistakes) + result.more_mistakes
        first = result.mistakes[0]
        location = f"{first.file}, line {first.line}" if first.line else first.file
        others = f" (and {count - 1} more mistakes)" if count > 1 else ""
        raise TrainingFailure(f"{location}: {first.message}{others}")
    if not quietly:
        for warning in result.warnings:
            events.write(warning, level="warn")
        events.write(
            f"Data checked: {result.rows} rows to train on with {result.tokens} tokens, "
            f"{result.validation_rows} held out, {result.cut_rows} cut"
        )
    return result


def _train(
    spec: Spec, attempt: Path, events: EventLog, watcher: SigtermWatcher, check_result: CheckResult
) -> Outcome:
    # These modules import torch, which takes seconds. They are imported only after the check, so
    # that mistakes in the rows are reported sooner.
    from trainer.batches import TokenRows  # noqa: PLC0415 - see above
    from trainer.loading import load_model  # noqa: PLC0415 - see above
    from trainer.training import Training  # noqa: PLC0415 - see above

    start = time.monotonic()
    model = load_model(spec)
    events.write(f"Model loaded in {time.monotonic() - start:.1f} s")
    rows = TokenRows(attempt / TOKENS, TRAINING), TokenRows(attempt / TOKENS, VALIDATION)
    training = Training(spec, attempt, rows, events, watcher)
    watcher.defer_exit()
    outcome = training.run(model)
    copy_directory(find_epoch_adapter(attempt.parent, attempt, outcome.best_step), attempt / RESULT)
    return outcome.model_copy(update={"trained_tokens": check_result.tokens * spec.epochs})
