"""Reads the events of a fine-tune from all attempts, and the progress of a running attempt."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from worker.fine_tunes.spec import EVENTS_FILE
from worker.progress import Progress
from worker.volume import ids, translate_os_errors

if TYPE_CHECKING:
    # A fine-tune reads its events.
    from worker.fine_tunes.record import FineTuneResult

EVENT_PREFIX = "ftevent-"
# Metrics in the progress that the platform receives while a job runs.
PROGRESS_METRICS = ("epoch", "loss")

Level = Literal["info", "warn", "error"]


class _EventLine(msgspec.Struct):
    """An event in the file of an attempt; the first line has only the step that it resumed at."""

    resumed_at: int | None = None
    at: float = 0.0
    level: Level = "info"
    message: str = ""
    step: int = 0
    # None for a value that JSON can't represent, for example NaN.
    metrics: dict[str, float | None] = {}


_decode = msgspec.json.Decoder(_EventLine).decode


@dataclass(frozen=True, slots=True)
class FineTuneEvent:
    """An event of a fine-tune."""

    id: str  # also orders the events of the same second
    created_at: int  # whole seconds since 1970, never less than the previous event's
    at: float  # seconds since 1970 by the worker's clock
    level: Level
    message: str  # for metrics, a Python dict as text, as in LLM Engine's events
    step: int  # completed steps
    # By OpenAI's names, or by the trainer's if OpenAI has none; empty for a message.
    metrics: dict[str, float]


# Names in events by the trainer's names: OpenAI's, if there is one. In OpenAI's API, a metric of an
# evaluation with all validation rows has two names. The trainer's ``train_loss``, in the last line
# from transformers, is the mean over the whole training.
_METRIC_NAMES = {
    "loss": ("train_loss",),
    "train_loss": ("mean_train_loss",),
    "mean_token_accuracy": ("train_mean_token_accuracy",),
    "eval_loss": ("valid_loss", "full_valid_loss"),
    "eval_mean_token_accuracy": ("valid_mean_token_accuracy", "full_valid_mean_token_accuracy"),
}


def read_events(
    id: str, created_at: int, attempts: Sequence[Path], result: "FineTuneResult | None"
) -> list[FineTuneEvent]:
    """Return the events of a fine-tune, oldest first. Reads files: call in a thread.

    The first event is the creation and, after the end, the last one is the result. Metrics of steps
    that a later attempt has repeated are left out.
    """
    lines = [_EventLine(at=created_at, message="Created")]
    lines += _merge_attempts(attempts)
    if result:
        message = "Cancelled"
        if result.error:
            message = result.error.message
        elif result.status == "succeeded":
            message = f"Succeeded: the adapter is called by its name, {result.adapter}"
        level: Level = "error" if result.error else "info"
        lines.append(_EventLine(at=result.at, level=level, message=message, step=result.steps))
    events, newest_at = [], 0
    for number, line in enumerate(lines):
        newest_at = max(newest_at, int(line.at))
        event_id = ids.number_id(EVENT_PREFIX, id, number)
        metrics = {
            name: value
            for trainer_name, value in line.metrics.items()
            if value is not None and math.isfinite(value)
            for name in _METRIC_NAMES.get(trainer_name, (trainer_name,))
        }
        fields = line.at, line.level, line.message, line.step, metrics
        events.append(FineTuneEvent(event_id, newest_at, *fields))
    return events


def _merge_attempts(attempts: Sequence[Path]) -> list[_EventLine]:
    """Return the lines of all attempts, without those of steps that a later attempt repeated."""
    merged: list[_EventLine] = []
    repeated_after = math.inf
    for attempt in reversed(attempts):
        lines = []
        with translate_os_errors(), contextlib.suppress(FileNotFoundError):
            # The text after the last newline is incomplete: it is being written, or the machine
            # crashed.
            for line in (attempt / EVENTS_FILE).read_bytes().split(b"\n")[:-1]:
                with contextlib.suppress(msgspec.DecodeError):
                    lines.append(_decode(line))
        valid = (line for line in lines if line.resumed_at is None)
        merged = [line for line in valid if line.step <= repeated_after] + merged
        resumed = [line.resumed_at for line in lines if line.resumed_at is not None]
        repeated_after = min([repeated_after, *resumed])
    return merged


class ProgressReader:
    """Updates a job's progress from the events of a running attempt."""

    def __init__(self, attempt: Path, progress: Progress) -> None:
        self._path = attempt / EVENTS_FILE
        self._progress = progress
        self._position = 0

    def update_progress(self) -> None:
        """Read the new events; call this in a thread."""
        with translate_os_errors():
            try:
                with self._path.open("rb") as file:
                    file.seek(self._position)
                    added = file.read()
            except FileNotFoundError:
                return
        complete = added[: added.rfind(b"\n") + 1]
        self._position += len(complete)
        changes: dict[str, float] = {}
        for line in map(_decode, complete.splitlines()):
            if line.step:
                changes["step"] = line.step
            numbers = ((name, line.metrics.get(name)) for name in PROGRESS_METRICS)
            changes |= {name: value for name, value in numbers if value is not None}
        self._progress.update(**changes)
