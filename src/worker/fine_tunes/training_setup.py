"""Everything that a worker needs to train adapters: model, memory and process."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from worker.engine import BaseModelHandle
from worker.errors import VolumeError, WorkerError
from worker.fine_tunes import results
from worker.fine_tunes.child import COMMAND
from worker.fine_tunes.creation import model_directory
from worker.fine_tunes.memory import POLL_S, MemoryInUse, ShouldStop, check_memory
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.request import FineTuneFailed
from worker.fine_tunes.spec import Spec
from worker.settings import Settings
from worker.volume import adapters

# Seconds that a training waits for memory that is in use. A process that has just exited releases
# its memory sooner.
MEMORY_TIMEOUT_S = 60.0

# Returns a context manager that reserves memory for a block; requests to the engine wait meanwhile.
ReserveMemory = Callable[[], AbstractAsyncContextManager[None]]


class TrainingSetup:
    """The worker's setup for training adapters. Call its methods in threads, except coroutines.

    ``reserve_memory`` is None if memory need not be reserved. With ``low_priority``, requests that
    the worker answers during a training have priority.
    """

    def __init__(
        self,
        fine_tunes: FineTunes,
        base_model: BaseModelHandle,
        settings: Settings,
        reserve_memory: ReserveMemory | None = None,
        *,
        low_priority: bool = True,
    ) -> None:
        self._fine_tunes = fine_tunes
        self._base_model = base_model
        self._settings = settings
        self.reserve_memory = reserve_memory
        self.low_priority = low_priority
        # Command of the trainer's process.
        self.command: Sequence[str] = COMMAND
        # Directory where adapters are published.
        self.adapters_directory = adapters.adapters_directory(settings.base_path)

    def make_spec(self, fine_tune: FineTune) -> Spec:
        request, model, settings = fine_tune.request, self._base_model.model, self._settings
        if not settings.base_path.is_dir():
            raise VolumeError("There is no network volume for the adapter: set BASE_PATH.")
        directory = model_directory(model)
        training_file, validation_file = request.training_file, request.validation_file
        return Spec(
            **dict(request.spec),
            model=directory,
            tokenizer=model.tokenizer.absolute() if model.tokenizer else directory,
            chat_template=model.chat_template,
            trust_remote_code=model.trust_remote_code,
            device="cpu" if model.device == "cpu" else "cuda",
            max_length=min(model.max_model_len, settings.fine_tune_max_length),
            training=self._fine_tunes.locate_rows(training_file),
            validation=self._fine_tunes.locate_rows(validation_file) if validation_file else None,
            wandb=request.wandb,
        )

    def reserve_space(self, size: int) -> None:
        """Count bytes that are about to be written to the volume; refuse those that don't fit."""
        self._fine_tunes.files.quota.reserve(size)

    def check_memory(self, spec: Spec) -> None:
        check_memory(spec)

    async def check_adapter(self, folder: Path) -> None:
        """Refuse a directory with an adapter that can't be served."""
        await self._base_model.check_adapter(folder)

    def write_results(self, fine_tune: FineTune, adapter: Path) -> Sequence[str]:
        return results.write_result_files(self._fine_tunes.files, fine_tune, adapter)

    async def spec_once_it_fits(
        self, fine_tune: FineTune, should_stop: ShouldStop, *, needs_memory: bool
    ) -> Spec | None:
        """Return the specification once a training fits into memory; None if it has to stop.

        With ``needs_memory``, the memory must be free now; otherwise, it may become free later.

        Raises:
            FineTuneFailed: The fine-tune can't be trained here.
        """
        deadline = time.monotonic() + MEMORY_TIMEOUT_S
        while True:
            try:
                spec = await asyncio.to_thread(self.make_spec, fine_tune)
                with contextlib.nullcontext() if needs_memory else contextlib.suppress(MemoryInUse):
                    await asyncio.to_thread(self.check_memory, spec)
            except WorkerError as error:
                if isinstance(error, VolumeError):
                    raise
                if not isinstance(error, MemoryInUse) or time.monotonic() > deadline:
                    raise FineTuneFailed("not_trainable", error.message, error.param) from error
            else:
                return spec
            if await should_stop():
                return None
            await asyncio.sleep(POLL_S)
