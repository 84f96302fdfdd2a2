"""What attempts at a training leave on the volume: how far they came, and what they made."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.spec import CHECKPOINTS, EPOCHS, EVENTS, OUTCOME, Event, Outcome, step_of
from worker.volume import failures

# Numbers that the platform is told while a job runs.
SHOWN = ("epoch", "loss")


def next_name(attempts: list[Path], owner: str) -> str:
    """Return the name of another attempt: by their names they are in the order of their beginning.

    Args:
        attempts: those that there are.
        owner: of the lease, under which nobody else begins one.
    """
    number = int(attempts[-1].name.partition(".")[0]) + 1 if attempts else 1
    return f"{number:06d}.{owner}"


def outcome_of(attempt: Path) -> Outcome | None:
    """Return how the training ended in an attempt; None: it did not."""
    with failures():
        try:
            content = (attempt / OUTCOME).read_bytes()
        except FileNotFoundError:
            return None
    return Outcome.model_validate_json(content)


def durable_step(attempts: list[Path]) -> int:
    """Return the step that another attempt would go on from."""
    with failures():
        names = [path.name for attempt in attempts for path in (attempt / CHECKPOINTS).glob("*")]
    return max((step for step in map(step_of, names) if step is not None), default=0)


def epochs_of(attempts: list[Path], last: Path) -> dict[int, Path]:
    """Return the adapters of all epochs by their steps.

    Args:
        attempts: the oldest first.
        last: the one that ended the training; of what several have made, it counts.
    """
    found: dict[int, Path] = {}
    with failures():
        for attempt in (*attempts, last):
            for path in (attempt / EPOCHS).glob("*"):
                if path.name.isdecimal():
                    found[int(path.name)] = path
    return dict(sorted(found.items()))


@dataclass(slots=True)
class Progress:
    """How far a training is, as it has told last: read from any thread."""

    epochs: int = 0
    step: int = 0
    numbers: dict[str, float] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        shown: dict[str, float] = {"step": self.step, "epochs": self.epochs}
        return shown | {name: self.numbers[name] for name in SHOWN if name in self.numbers}


class Listener:
    """Reads what an attempt tells while it is told.

    Args:
        attempt: its directory.
        progress: updated.
    """

    def __init__(self, attempt: Path, progress: Progress) -> None:
        self._path = attempt / EVENTS
        self._progress = progress
        self._read = 0

    def look(self) -> None:
        """Read what has been added; call it in a thread."""
        for event in self._added():
            self._progress.step = event.step or self._progress.step
            self._progress.numbers |= event.metrics

    def _added(self) -> Iterator[Event]:
        with failures():
            try:
                with self._path.open("rb") as opened:
                    opened.seek(self._read)
                    added = opened.read()
            except FileNotFoundError:
                return
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            # The first line is of another kind: where the attempt goes on.
            if "at" in (values := json.loads(line)):
                yield Event.model_validate(values)
