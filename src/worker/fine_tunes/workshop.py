"""What a worker trains adapters with, one at a time: its model, its memory, its process."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from trainer.spec import Spec
from worker.engine import Base
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


class Workshop:
    """What a worker trains adapters with. Its methods but the asynchronous ones are for threads.

    Args:
        fine_tunes: of the volume.
        base: has the model, and checks the adapters.
        settings: the worker's.
        room: makes room for a training; None: there is some.
        nice: whether requests are answered beside.
    """

    def __init__(
        self,
        fine_tunes: FineTunes,
        base: Base,
        settings: Settings,
        room: Room | None = None,
        *,
        nice: bool = True,
    ) -> None:
        self._fine_tunes = fine_tunes
        self._base = base
        self._settings = settings
        self.room = room
        self.nice = nice
        self.bench = Bench()
        # Of the process that trains.
        self.command: Sequence[str] = COMMAND
        # Where adapters are published.
        self.adapters = adapters.directory(settings.base_path)

    def spec(self, fine_tune: FineTune) -> Spec:
        """Return the specification of a fine-tune's training.

        Raises:
            InvalidInput: the model can't be trained.
            NoSuchObject: its rows are no longer there.
            VolumeError: the volume fails.
        """
        request, model, settings = fine_tune.request, self._base.model, self._settings
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
            training=self._fine_tunes.data(rows),
            validation=self._fine_tunes.data(held_out) if held_out else None,
            wandb=request.wandb,
        )

    def check_memory(self, spec: Spec) -> None:
        """Refuse a training that can't fit into the memory that is free now; see ``memory``."""
        check_memory(spec)

    async def check_adapter(self, folder: Path) -> None:
        """Refuse a directory that is no adapter which can be served.

        Raises:
            WorkerError: the reason.
        """
        await self._base.check_adapter(folder)

    def write_results(self, fine_tune: FineTune) -> Sequence[str]:
        """Write the files that callers get of a fine-tune; return their ids."""
        return results.write(self._fine_tunes.files, fine_tune)

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
                    await asyncio.to_thread(self.check_memory, spec)
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
