"""What a worker trains adapters with, one at a time."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from trainer.spec import Spec
from worker.fine_tunes.state import FineTune


class Bench:
    """Lets a worker train one adapter at a time: the oldest of those that wait. Use on one loop."""

    def __init__(self) -> None:
        self._waiting: set[tuple[int, str]] = set()
        self._busy = False

    @contextlib.contextmanager
    def taken(self, place: tuple[int, str]) -> Iterator[bool]:
        """Yield whether it is this one's turn, which then has the bench for the block."""
        self._waiting.add(place)
        free = not self._busy and place == min(self._waiting)
        self._busy = self._busy or free
        try:
            yield free
        finally:
            if free:
                self._busy = False
                # Until it waits again: if another worker is at it, others can be trained here.
                self._waiting.discard(place)

    def leave(self, place: tuple[int, str]) -> None:
        """Wait no longer."""
        self._waiting.discard(place)


# Makes room in the memory for a block; what is beside it waits.
Room = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a worker trains adapters with.

    Args:
        spec: returns what a fine-tune's training is given; called in a thread. It raises
            ``WorkerError`` if it can't be trained here.
        fits: raises ``MemoryTaken`` if others have the memory for a training now, and
            ``WorkerError`` if there never is enough; called in a thread.
        check: raises ``WorkerError`` for a directory that is no adapter which can be served.
        results: writes the files that callers get of a fine-tune, and returns their ids; in a
            thread.
        adapters: where they are published.
        closed: returns whether the worker is being stopped.
        command: of the process that trains.
        bench: of the worker.
        nice: whether requests are answered beside.
        room: makes room for a training; None: there is some.
    """

    spec: Callable[[FineTune], Spec]
    fits: Callable[[Spec], None]
    check: Callable[[Path], Awaitable[None]]
    results: Callable[[FineTune], Sequence[str]]
    adapters: Path
    closed: Callable[[], bool]
    command: Sequence[str]
    bench: Bench
    nice: bool = True
    room: Room | None = None
