"""Writes the events of a training: a file of lines, which only its attempt appends to."""

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
        self._written: set[tuple[int, str]] = set()
        self._file = path.open("a", encoding="utf-8")
        self._append(Resumed(resumed_at=resumed_at))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(
        self, message: str, step: int = 0, level: Literal["info", "warn", "error"] = "info"
    ) -> None:
        self._append(Event(at=time.time(), level=level, message=message, step=step))

    def write_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics, once for a step: steps are done again with fewer rows at once.

        Args:
            metrics: by name; numbers that are not finite are in the message only.
            step: the steps done.
        """
        key = step, next(iter(metrics), "")
        if key in self._written:
            return
        self._written.add(key)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        event = Event(at=time.time(), message=str(dict(metrics)), step=step, metrics=finite)
        self._append(event)

    def sync(self) -> None:
        """Make the events durable: a checkpoint that follows is never ahead of them."""
        os.fsync(self._file.fileno())

    def _append(self, line: Event | Resumed) -> None:
        self._file.write(f"{line.model_dump_json()}\n")
        self._file.flush()
