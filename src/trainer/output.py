"""What an attempt writes to its directory: events, checkpoints, and the adapters of epochs."""

import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from worker.fine_tunes.spec import (
    CHECKPOINTS_DIR,
    Event,
    ResumeEvent,
    parse_checkpoint_step,
)
from worker.volume import adapters
from worker.volume.durable import atomic_directory, remove_directory

# Number of checkpoints that are retained per attempt.
MAX_CHECKPOINTS = 2


class EventLog:
    """The log of an attempt's events, as lines of JSON. A context manager that closes the file.

    ``resume_step`` is the step from which the attempt resumes; 0 without a checkpoint.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        self._logged_metrics: set[tuple[int, str]] = set()
        self._file = path.open("a", encoding="utf-8")
        self._append(ResumeEvent(resumed_at=resume_step))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(
        self, message: str, step: int = 0, level: Literal["info", "warn", "error"] = "info"
    ) -> None:
        self._append(Event(at=time.time(), level=level, message=message, step=step))

    def write_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a step's metrics, unless metrics of this step with the same first name exist.

        Steps are repeated when a training continues with fewer rows per forward pass. Values that
        are not finite appear in the event's message only.
        """
        key = step, next(iter(metrics), "")
        if key in self._logged_metrics:
            return
        self._logged_metrics.add(key)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        event = Event(at=time.time(), message=str(dict(metrics)), step=step, metrics=finite)
        self._append(event)

    def sync(self) -> None:
        """Make the events durable, so that the checkpoint that follows is not ahead of them."""
        os.fsync(self._file.fileno())

    def _append(self, line: Event | ResumeEvent) -> None:
        self._file.write(f"{line.model_dump_json(ensure_ascii=True)}\n")
        self._file.flush()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of transformers' Trainer; ``step`` is its number of completed steps."""

    path: Path
    step: int


def copy_newest_checkpoint(attempts: Path, attempt: Path) -> Checkpoint | None:
    """Copy the newest checkpoint of all attempts into this attempt, unless it is already there.

    If the checkpoint disappears during the copy, the next newest is copied. This happens if another
    attempt still runs, although its worker counts as dead, and removes its older checkpoints.
    """
    removed: set[Path] = set()
    while candidates := [
        checkpoint
        for directory in attempts.iterdir()
        for checkpoint in _list_checkpoints(directory)
        if checkpoint.path not in removed
    ]:
        newest = max(candidates, key=lambda each: (each.step, each.path.is_relative_to(attempt)))
        if newest.path.is_relative_to(attempt):
            return newest
        destination = attempt / CHECKPOINTS_DIR / newest.path.name
        try:
            with atomic_directory(destination) as hidden_path:
                # shutil.copytree is not used: its errors lose their errno.
                for file in newest.path.iterdir():
                    shutil.copyfile(file, hidden_path / file.name)
        except FileNotFoundError:
            removed.add(newest.path)
        else:
            return Checkpoint(destination, newest.step)
    return None


def find_newest_checkpoint(attempt: Path) -> Checkpoint | None:
    return max(_list_checkpoints(attempt), key=lambda each: each.step, default=None)


def prune_checkpoints(attempt: Path) -> None:
    for old in sorted(_list_checkpoints(attempt), key=lambda each: each.step)[:-MAX_CHECKPOINTS]:
        # One that can't be removed does no harm: no attempt resumes from a part of it.
        with suppress(OSError):
            remove_directory(old.path)


def _list_checkpoints(attempt: Path) -> Iterator[Checkpoint]:
    directory = attempt / CHECKPOINTS_DIR
    for path in directory.iterdir() if directory.is_dir() else ():
        if (step := parse_checkpoint_step(path.name)) is not None:
            yield Checkpoint(path, step)


def copy_adapter(checkpoint: Path, destination: Path, base_name: str) -> None:
    """Copy a checkpoint's adapter atomically and durably; an existing copy stays as it is.

    The base model's name is written into the configuration of the copy.
    """
    with atomic_directory(destination) as hidden_path:
        adapters.copy_adapter(checkpoint, hidden_path, base_name)
