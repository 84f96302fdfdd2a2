"""Trainings as they are seen from outside: processes, moments, and what they came to."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from worker.fine_tunes.state import FineTune
from worker.trainer.spec import CHECKED, CHECKPOINTS, EVENTS, WRITING

TRAINER = "worker.trainer"


@dataclass(frozen=True)
class Numbers:
    """What a training came to.

    Args:
        steps: done.
        losses: by step and name.
        weights: of the adapter.
        seconds: from its request to its end.
    """

    steps: int
    losses: dict[tuple[int, str], float]
    weights: bytes
    seconds: float

    def distance(self, other: "Numbers") -> float:
        """Return the most that a loss differs by; infinite if one lacks steps."""
        if self.losses.keys() != other.losses.keys():
            return math.inf
        return max(abs(loss - other.losses[key]) for key, loss in self.losses.items())


def trainers(place: Path) -> list[psutil.Process]:
    """Return the processes that train, or check rows, below a directory."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            command = one.cmdline()
            ours = any(part.startswith(TRAINER) for part in command)
            if ours and any(part.startswith(str(place)) for part in command):
                found.append(one)
    return found


def lives(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie has."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def own_memory(process: psutil.Process) -> int:
    """Return the bytes that are in memory, but for what files are mapped, as libraries are."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def moments(fine_tune: FineTune, before: int) -> dict[str, Callable[[], bool]]:
    """Return how it is seen that an attempt after so many others is in the middle of something."""

    def newest(*names: str) -> bool:
        attempts = fine_tune.attempts()
        return len(attempts) > before and any((attempts[-1] / name).exists() for name in names)

    def writing() -> bool:
        attempts = fine_tune.attempts()[before:]
        hidden = f"{CHECKPOINTS}/.*"
        return any(any(one.glob(f"{WRITING}/*")) or any(one.glob(hidden)) for one in attempts)

    return {
        "begun": lambda: newest(EVENTS),
        "checking": lambda: newest(EVENTS) and not newest(CHECKED),
        "writing": writing,
        "publishing": lambda: fine_tune.publishing is not None,
    }
