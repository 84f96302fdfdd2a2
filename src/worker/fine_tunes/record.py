"""Records of fine-tunes on the volume: request, progress and result. Files are their state."""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from worker.errors import Conflict, VolumeError
from worker.fine_tunes.events import FineTuneEvent, read_events
from worker.fine_tunes.hyperparameters import LEARNING_RATE
from worker.fine_tunes.spec import (
    ATTEMPTS_DIR,
    CHECKPOINTS_DIR,
    EPOCHS_DIR,
    OUTCOME_FILE,
    Hyperparameters,
    Outcome,
    RowsFile,
    parse_checkpoint_step,
)
from worker.long_work.records import (
    DECISION,
    PAUSED,
    REQUEST,
    RESULT,
    Record,
    Records,
    StoredRequest,
    TimedModel,
)
from worker.validation import StrictModel
from worker.volume import translate_os_errors

# Formats of rows by file extension.
FORMATS: dict[str, Literal["csv", "jsonl"]] = {".csv": "csv", ".jsonl": "jsonl"}
# Files in the directory of a fine-tune, in addition to those of all long work. They are numbered
# from 1: the newest pause lasts until there is a resumption with the same number.
PAUSE, RESUME = "pause-{}.json", "resume-{}.json"

FineTuneStatus = Literal["succeeded", "failed", "cancelled"]


class StoredFineTune(StoredRequest, StrictModel):
    """A request for a fine-tune on the volume. Files are named by their ids."""

    base: str  # served name of the base model
    training_file: str
    validation_file: str | None = None  # None: a tenth of the training rows
    spec: Hyperparameters = Hyperparameters()
    suffix: str | None = None  # a part of the adapter's name
    metadata: dict[str, str] | None = None
    method: Literal["supervised"] = "supervised"
    wandb: dict[str, Any] | None = None  # without the key; None: report nothing

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def learning_rate_multiplier(self) -> float:
        """OpenAI's multiplier for the default learning rate."""
        return round(self.spec.learning_rate / LEARNING_RATE, 9)

    @property
    def input_file_ids(self) -> Mapping[str, str]:
        files = {"training_file": self.training_file, "validation_file": self.validation_file}
        return {field: file_id for field, file_id in files.items() if file_id is not None}


class AdapterChoice(StrictModel):
    """The adapter to publish. It is chosen once, so that all workers publish the same one."""

    name: str  # served by this name
    attempt: str  # directory of the attempt whose result is published


class FineTuneDecision(TimedModel, StrictModel):
    """How a fine-tune will end, decided once: by a cancel, or by the worker that runs it."""

    status: FineTuneStatus
    publishing: AdapterChoice | None = None  # if it succeeds


class FailureReason(StrictModel):
    """Why a fine-tune has failed, in OpenAI's format."""

    code: str
    message: str
    param: str | None = None


class FineTuneFailed(Exception):
    """A fine-tune has failed; ``error`` is the reason for the caller."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = FailureReason(code=code, message=message, param=param)


class EpochCheckpoint(StrictModel):
    """The adapter of an epoch."""

    step: int  # at the end of the epoch
    name: str | None = None  # None if it is not served


class FineTuneResult(TimedModel, StrictModel):
    """How a fine-tune ended."""

    status: FineTuneStatus
    error: FailureReason | None = None
    adapter: str | None = None  # its name, if the fine-tune succeeded
    checkpoints: tuple[EpochCheckpoint, ...] = ()  # ordered by their steps
    result_file_ids: tuple[str, ...] = ()  # the metrics and the adapter
    trained_tokens: int = 0  # over all epochs
    steps: int = 0


class FineTune(Record):
    """The directory of one fine-tune. Its methods read and write files: call them in threads."""

    kind: ClassVar[str] = "fine_tune"
    noun: ClassVar[str] = "fine-tuning job"

    @property
    def request(self) -> StoredFineTune:
        return self.read_required_file(REQUEST, StoredFineTune)

    @property
    def result(self) -> FineTuneResult | None:
        return self.read_file(RESULT, FineTuneResult)

    @property
    def decision(self) -> FineTuneDecision | None:
        return self.read_file(DECISION, FineTuneDecision)

    @property
    def adapter_choice(self) -> AdapterChoice | None:
        decision = self.decision
        return decision.publishing if decision else None

    @property
    def retention_start(self) -> int | None:
        result = self.result
        return result.at if result else None

    @property
    def status(self) -> str:
        """Status by OpenAI's names.

        A fine-tune is "queued" while no worker runs it. After a cancel, it stays "running" until
        the worker that runs it has noticed.
        """
        if result := self.result:
            return result.status
        if self.stop_reason() == PAUSED:
            return PAUSED
        if not self.is_running():
            return "queued"
        return "running" if self.has_checked_rows() else "validating_files"

    def stop_reason(self) -> str | None:
        """Return "cancelled" or ``PAUSED`` if no worker should train; None otherwise.

        A worker may still publish the result of a training that has finished before a pause.
        """
        decision = self.decision
        if decision and decision.status == "cancelled":
            return "cancelled"
        newest_pause = self._newest_pause()
        return PAUSED if newest_pause and not self.has_file(RESUME.format(newest_pause)) else None

    def attempt_paths(self) -> list[Path]:
        """Return the directories of the attempts, oldest first."""
        with translate_os_errors():
            try:
                paths = list((self.directory / ATTEMPTS_DIR).iterdir())
            except FileNotFoundError:
                return []
        return sorted(path for path in paths if path.name[0].isdigit())

    def add_attempt(self, owner: str) -> Path:
        """Create the directory of the next attempt; only the ``owner`` of the lease may do this."""
        attempts = self.attempt_paths()
        number = int(attempts[-1].name.partition(".")[0]) + 1 if attempts else 1
        attempt = self.directory / ATTEMPTS_DIR / f"{number:06d}.{owner}"
        with translate_os_errors():
            attempt.mkdir(parents=True)
        return attempt

    def has_checked_rows(self) -> bool:
        return any(map(self.has_file, map(_outcome_name, self.attempt_paths())))

    def read_outcome(self, attempt: Path) -> Outcome | None:
        """Return what has become of an attempt; None before the end of the check of its rows."""
        return self.read_file(_outcome_name(attempt), Outcome)

    def durable_step(self) -> int:
        """Return the step from which another attempt would continue; 0 without a checkpoint."""
        with translate_os_errors():
            paths = [
                path for one in self.attempt_paths() for path in (one / CHECKPOINTS_DIR).glob("*")
            ]
        steps = [parse_checkpoint_step(path.name) for path in paths]
        return max((step for step in steps if step is not None), default=0)

    def epoch_adapter_directories(self, final_attempt: Path) -> dict[int, Path]:
        """Return the directories of the adapters of all epochs by their steps.

        If several attempts have an adapter of the same step, ``final_attempt`` has priority.
        """
        adapters: dict[int, Path] = {}
        with translate_os_errors():
            for attempt in (*self.attempt_paths(), final_attempt):
                for path in (attempt / EPOCHS_DIR).glob("*"):
                    if path.name.isdecimal():
                        adapters[int(path.name)] = path
        return dict(sorted(adapters.items()))

    def events(self) -> list[FineTuneEvent]:
        """Return the events of all attempts, oldest first."""
        return read_events(self.id, self.created_at, self.attempt_paths(), self.result)

    def metrics_by_step(self) -> dict[int, dict[str, float]]:
        """Return the metrics of each step that has any, by OpenAI's names."""
        metrics: dict[int, dict[str, float]] = {}
        for event in self.events():
            if event.metrics:
                metrics.setdefault(event.step, {}).update(event.metrics)
        return dict(sorted(metrics.items()))

    def cancel(self) -> None:
        """Request that the workers stop the fine-tune permanently.

        Raises:
            Conflict: The fine-tune has ended, or its adapter is being published.
        """
        self._check_not_ended("cancelled")
        # A worker may have decided before: it publishes the adapter, or the training has failed.
        decision = self.write_or_read_file(DECISION, FineTuneDecision(status="cancelled"))
        if decision.status != "cancelled":
            raise self._conflict("cancelled", decision.status)

    def pause(self) -> None:
        """Request that the workers stop after a checkpoint, until ``resume``."""
        self._check_not_ended("paused")
        if stop_reason := self.stop_reason():
            raise Conflict(f"The {self.noun} {self.id!r} is {stop_reason} already.")
        self.write_file(PAUSE.format(self._newest_pause() + 1), TimedModel())

    def resume(self) -> None:
        self._check_not_ended("resumed")
        if self.stop_reason() != PAUSED:
            raise Conflict(f"The {self.noun} {self.id!r} is not paused.")
        self.write_file(RESUME.format(self._newest_pause()), TimedModel())

    def decide_publishing(self, choice: AdapterChoice) -> AdapterChoice | None:
        """Decide once which adapter is published; return the decision, None for no adapter."""
        decision = FineTuneDecision(status="succeeded", publishing=choice)
        return self.write_or_read_file(DECISION, decision).publishing

    def end(self, result: FineTuneResult) -> FineTuneResult:
        """End the fine-tune; return the earlier result if there is one.

        A failure after a cancel becomes a cancellation. The checkpoints and adapters in the
        directories of the attempts are removed; a published adapter is a copy, and stays.
        """
        if result.status == "failed":
            decision = self.write_or_read_file(
                DECISION, FineTuneDecision(status="failed", at=result.at)
            )
            if decision.status == "cancelled":
                result = FineTuneResult(status="cancelled", at=result.at)
        stored = self.write_or_read_file(RESULT, result)
        # The fine-tune has ended even if some files remain; they are removed with its directory.
        with contextlib.suppress(OSError, VolumeError):
            for attempt in self.attempt_paths():
                for path in attempt.iterdir():
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
        return stored

    def _check_not_ended(self, action: str) -> None:
        # This raises an error if the fine-tune doesn't exist.
        _ = self.request
        if result := self.result:
            raise self._conflict(action, result.status, ended=True)
        if self.adapter_choice:
            raise self._conflict(action, "succeeded")

    def _conflict(self, action: str, status: FineTuneStatus, *, ended: bool = False) -> Conflict:
        if status == "succeeded" and not ended:
            return Conflict(
                f"The adapter of the {self.noun} {self.id!r} is being published: "
                f"it can't be {action} any more."
            )
        return Conflict(
            f"The {self.noun} {self.id!r} has {_END_PHRASES[status]}, and can't be {action}."
        )

    def _newest_pause(self) -> int:
        """Return the number of the newest pause; 0 if there was no pause."""
        number = 0
        while self.has_file(PAUSE.format(number + 1)):
            number += 1
        return number


def _outcome_name(attempt: Path) -> str:
    return f"{ATTEMPTS_DIR}/{attempt.name}/{OUTCOME_FILE}"


WORKERS_DIED = FailureReason(
    code="workers_died", message="Too many workers have died while they ran the fine-tune."
)
_END_PHRASES: dict[FineTuneStatus, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "been cancelled",
}


class FineTunes(Records[FineTune, StoredFineTune]):
    """All fine-tunes of a volume. Its methods read and write files: call them in threads.

    A fine-tune is removed some time after its end, but its adapter stays.
    """

    record_type = FineTune
    id_prefix: ClassVar[str] = "ftjob-"
    folder: ClassVar[str] = "fine_tunes"
    id_param: ClassVar[str] = "fine_tuning_job_id"
    input_purpose: ClassVar[str] = "fine-tune"

    def end(self, fine_tune: FineTune, status: FineTuneStatus) -> FineTuneResult:
        """End a fine-tune without an adapter."""
        error = WORKERS_DIED if status == "failed" else None
        return fine_tune.end(FineTuneResult(status=status, error=error))

    def locate_rows(self, file_id: str) -> RowsFile:
        """Return the path of a file with rows, and its format, None for an unknown extension."""
        # An expired file is not removed while a fine-tune needs it.
        file = self.files.get(file_id, include_expired=True)
        form = FORMATS.get(Path(file.filename.lower()).suffix)
        return RowsFile(path=self.files.content_path(file).absolute(), form=form)
