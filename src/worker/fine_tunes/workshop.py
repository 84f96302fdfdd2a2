"""What a worker trains adapters with, one at a time: its model, its memory, its process."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainer.spec import Spec
from worker.engine import Base, Model
from worker.errors import VolumeError, WorkerError
from worker.fine_tunes import results
from worker.fine_tunes.child import COMMAND
from worker.fine_tunes.creation import directory_of
from worker.fine_tunes.memory import WATCH_S, MemoryTaken, Stops, check_memory
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.request import Failed
from worker.settings import Settings
from worker.volume import adapters

# Seconds that a training waits for memory that others have: what has just been ended gives it back
# in less.
MEMORY_S = 60.0

# Makes room in the memory for a block; what is beside it waits.
Room = Callable[[], AbstractAsyncContextManager[None]]


# When a fine-tune was created, and its id.
Place = tuple[int, str]


class Bench:
    """Lets a worker train one adapter at a time: the oldest of those that wait. Use on one loop."""

    def __init__(self) -> None:
        self._waiting: set[Place] = set()
        self._busy = False

    @contextlib.contextmanager
    def taken(self, place: Place) -> Iterator[bool]:
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

    def leave(self, place: Place) -> None:
        """Wait no longer."""
        self._waiting.discard(place)


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a worker trains adapters with.

    Args:
        spec: returns the specification of a fine-tune's training; called in a thread. It raises
            ``WorkerError`` if it can't be trained here.
        fits: raises ``MemoryTaken`` if others have the memory for a training now, and
            ``WorkerError`` if there never is enough; called in a thread.
        check: raises ``WorkerError`` for a directory that is no adapter which can be served.
        results: writes the files that callers get of a fine-tune, and returns their ids; in a
            thread.
        adapters: where they are published.
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
    command: Sequence[str]
    bench: Bench
    nice: bool = True
    room: Room | None = None

    @classmethod
    def of(
        cls,
        fine_tunes: FineTunes,
        base: Base,
        settings: Settings,
        room: Room | None,
        *,
        nice: bool,
    ) -> "Workshop":
        """Return a worker's.

        Args:
            fine_tunes: of the volume.
            base: has the model, and judges the adapters.
            settings: the worker's.
            room: as above; ``nice`` likewise.
        """
        return cls(
            spec=partial(spec_of, fine_tunes=fine_tunes, model=base.model, settings=settings),
            fits=check_memory,
            check=base.check_adapter,
            results=partial(results.write, fine_tunes.files),
            adapters=adapters.directory(settings.base_path),
            command=COMMAND,
            bench=Bench(),
            nice=nice,
            room=room,
        )

    async def fitting_spec(
        self, fine_tune: FineTune, stops: Stops, *, patient: bool
    ) -> Spec | None:
        """Return the specification of a training; None: it has to stop before it fits.

        Args:
            fine_tune: to be trained.
            stops: returns whether the training has to stop.
            patient: whether it needs the memory now, and waits for it; else it may have it later.

        Raises:
            Failed: it can't be trained here.
            VolumeError: the volume fails.
        """
        until = time.monotonic() + MEMORY_S
        while True:
            try:
                spec = await asyncio.to_thread(self.spec, fine_tune)
                with contextlib.nullcontext() if patient else contextlib.suppress(MemoryTaken):
                    await asyncio.to_thread(self.fits, spec)
            except WorkerError as error:
                if isinstance(error, VolumeError):
                    raise
                if not isinstance(error, MemoryTaken) or time.monotonic() > until:
                    raise Failed("not_trainable", error.message, error.param) from error
            else:
                return spec
            if await stops():
                return None
            await asyncio.sleep(WATCH_S)


def spec_of(
    fine_tune: FineTune, *, fine_tunes: FineTunes, model: Model, settings: Settings
) -> Spec:
    """Return the specification of a fine-tune's training. For threads.

    Raises:
        InvalidInput: the model can't be trained.
        NoSuchObject: its rows are no longer there.
        VolumeError: the volume fails.
    """
    request = fine_tune.request
    if not settings.base_path.is_dir():
        raise VolumeError("There is no network volume for the adapter: set BASE_PATH.")
    place = directory_of(model)
    rows, held_out = request.training_file, request.validation_file
    return Spec(
        **dict(request.spec),
        model=place,
        tokenizer=model.tokenizer.absolute() if model.tokenizer else place,
        chat_template=model.chat_template,
        trust_remote_code=model.trust_remote_code,
        device="cpu" if model.device == "cpu" else "cuda",
        max_length=min(model.max_model_len, settings.fine_tune_max_length),
        training=fine_tunes.data(rows),
        validation=fine_tunes.data(held_out) if held_out else None,
        wandb=request.wandb,
    )
