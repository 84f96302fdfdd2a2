"""What a fine-tune has told so far, over all attempts at it."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from trainer.spec import EVENTS
from worker.fine_tunes.request import FineTuneResult
from worker.volume import failures

PREFIX = "ftevent-"
# Metrics that the platform gets while a job runs.
SHOWN = ("epoch", "loss")

Level = Literal["info", "warn", "error"]


class _Line(msgspec.Struct):
    """A line of an attempt: the first one, ``spec.Resumed``, or a ``spec.Event``."""

    resumed_at: int | None = None
    at: float = 0.0
    level: Level = "info"
    message: str = ""
    step: int = 0
    # What is no number has none in JSON.
    metrics: dict[str, float | None] = {}


_decode = msgspec.json.Decoder(_Line).decode


@dataclass(frozen=True, slots=True)
class Told:
    """An event of a fine-tune.

    Args:
        id: also sorts those of a second.
        created_at: whole seconds since 1970, not before that of the event before.
        at: as the worker's clock was.
        level: how bad it is.
        message: of metrics, LLM Engine's: the text of a Python dict.
        step: the steps done when it was told.
        metrics: by OpenAI's names, where it has any; empty: only a message.
    """

    id: str
    created_at: int
    at: float
    level: Level
    message: str
    step: int
    metrics: dict[str, float]


# OpenAI's names of metrics. All validation rows are looked at, every time; transformers' last line
# has the mean over the whole training.
_NAMES = {
    "loss": ("train_loss",),
    "train_loss": ("mean_train_loss",),
    "mean_token_accuracy": ("train_mean_token_accuracy",),
    "eval_loss": ("valid_loss", "full_valid_loss"),
    "eval_mean_token_accuracy": ("valid_mean_token_accuracy", "full_valid_mean_token_accuracy"),
}


def events(
    id: str, created_at: int, attempts: Sequence[Path], result: FineTuneResult | None
) -> list[Told]:
    """Return what a fine-tune has told, the oldest first. Reads files: for threads.

    Metrics of steps that a later attempt has done again are left out.

    Args:
        id: of the fine-tune.
        created_at: in seconds since 1970.
        attempts: their directories, the oldest first.
        result: how it ended.

    Raises:
        VolumeError: the volume fails.
    """
    lines = [_Line(at=created_at, message="Created")]
    lines += _merged([list(_read(attempt / EVENTS)) for attempt in attempts])
    if result:
        lines.append(_ended(result))
    told, newest = [], 0
    for number, line in enumerate(lines):
        newest = max(newest, int(line.at))
        event_id = f"{PREFIX}{id.rpartition('-')[2]}-{number:08}"
        metrics = _renamed(line.metrics)
        told.append(Told(event_id, newest, line.at, line.level, line.message, line.step, metrics))
    return told


def by_step(told: list[Told]) -> dict[int, dict[str, float]]:
    """Return the metrics of each step that has any."""
    found: dict[int, dict[str, float]] = {}
    for one in told:
        if one.metrics:
            found.setdefault(one.step, {}).update(one.metrics)
    return dict(sorted(found.items()))


def _renamed(metrics: dict[str, float | None]) -> dict[str, float]:
    """Return the metrics that are numbers, by OpenAI's names, where it has any."""
    return {
        name: value
        for own, value in metrics.items()
        if value is not None and math.isfinite(value)
        for name in _NAMES.get(own, (own,))
    }


class Listener:
    """Reads what an attempt tells while it is told.

    Args:
        attempt: its directory.
        progress: updated; read from any thread.
    """

    def __init__(self, attempt: Path, progress: dict[str, float]) -> None:
        self._path = attempt / EVENTS
        self._progress = progress
        self._read = 0

    def look(self) -> None:
        """Read what has been added; call it in a thread."""
        with failures():
            try:
                with self._path.open("rb") as opened:
                    opened.seek(self._read)
                    added = opened.read()
            except FileNotFoundError:
                return
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in map(_decode, whole.splitlines()):
            if line.step:
                self._progress["step"] = line.step
            numbers = ((name, line.metrics.get(name)) for name in SHOWN)
            self._progress.update((name, value) for name, value in numbers if value is not None)


def _read(path: Path) -> Iterator[_Line]:
    """Yield the lines of an attempt that are whole."""
    with failures():
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
    # What follows the last newline is being written, or was when the machine went away.
    for line in content.split(b"\n")[:-1]:
        with contextlib.suppress(msgspec.DecodeError):
            yield _decode(line)


def _merged(attempts: list[list[_Line]]) -> list[_Line]:
    found: list[_Line] = []
    done_again = math.inf
    for lines in reversed(attempts):
        kept = [
            line
            for line in lines
            if line.resumed_at is None and not (line.metrics and line.step > done_again)
        ]
        found = kept + found
        done_again = min(
            [done_again, *(line.resumed_at for line in lines if line.resumed_at is not None)]
        )
    return found


def _ended(result: FineTuneResult) -> _Line:
    if result.error:
        return _Line(at=result.at, level="error", message=result.error.message, step=result.steps)
    message = "Cancelled"
    if result.status == "succeeded":
        message = f"Succeeded: the adapter is called by its name, {result.adapter}"
    return _Line(at=result.at, message=message, step=result.steps)
