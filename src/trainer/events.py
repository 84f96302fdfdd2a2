"""Writes what a training tells: a file of lines, which its attempt alone appends to."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from trainer.spec import Event, Resumed


class Events:
    """An attempt's events.

    Args:
        path: of the file.
        resumed_at: the step that the attempt goes on from.

    Raises:
        OSError: it can't be written, here and in all methods.
    """

    def __init__(self, path: Path, resumed_at: int) -> None:
        self._told: set[tuple[int, str]] = set()
        self._file = path.open("a", encoding="utf-8")
        self._write(Resumed(resumed_at=resumed_at))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def tell(
        self, message: str, step: int = 0, level: Literal["info", "warn", "error"] = "info"
    ) -> None:
        self._write(Event(at=time.time(), level=level, message=message, step=step))

    def tell_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Tell numbers, unless the same ones were told: steps are done again after a retreat.

        Args:
            metrics: by name; numbers that are not finite stand in the message only.
            step: the steps done.
        """
        key = step, next(iter(metrics), "")
        if key in self._told:
            return
        self._told.add(key)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        event = Event(at=time.time(), message=str(dict(metrics)), step=step, metrics=finite)
        self._write(event)

    def sync(self) -> None:
        """Make durable what was told: a checkpoint that follows is never ahead of its events."""
        os.fsync(self._file.fileno())

    def _write(self, line: Event | Resumed) -> None:
        self._file.write(f"{line.model_dump_json()}\n")
        self._file.flush()
