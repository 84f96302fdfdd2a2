"""Writes the events of an attempt as lines of JSON to the attempt's own file."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from worker.fine_tunes.spec import Event, ResumeEvent


class EventLog:
    """The log of an attempt's events. A context manager that closes the file.

    Args:
        path: Path of the file, to which the events are appended.
        resume_step: Step from which the attempt resumes; 0 without a checkpoint.

    Raises:
        OSError: The file can't be written. All methods raise it, too.
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
