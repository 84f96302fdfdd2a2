"""A step of a fine-tune: trains, publishes the adapter, and ends the fine-tune."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from worker.engine import BaseModelHandle
from worker.errors import EngineBusy, VolumeError, WorkerError
from worker.fine_tunes.child import CHECKPOINT_S, COMMAND, TrainerProcess, explain_exit
from worker.fine_tunes.creation import model_directory
from worker.fine_tunes.events import ProgressReader
from worker.fine_tunes.memory import MemoryInUse, check_memory
from worker.fine_tunes.publish import publish_result
from worker.fine_tunes.record import FineTune, FineTuneFailed, FineTuneResult, FineTunes
from worker.fine_tunes.spec import ATTEMPTS_DIR, CHECK_OPTION, SPEC_FILE, ExitStatus, Spec
from worker.long_work.runner import Turn
from worker.progress import Progress
from worker.settings import Settings
from worker.volume import translate_os_errors
from worker.volume.adapters import adapters_directory
from worker.volume.durable import write_file
from worker.volume.lease import Lease

log = logging.getLogger(__name__)

# Seconds before the end of a job's time when the training writes a checkpoint and exits.
WIND_DOWN_S = CHECKPOINT_S + 15
# Maximum crashes in one job; after more, even a training that makes progress isn't restarted.
MAX_CRASHES = 2
# Seconds between two checks whether to stop, and between two checks of the memory.
POLL_S = 1.0
# Seconds that a training waits for memory that is in use. A process that has just exited releases
# its memory sooner.
MEMORY_TIMEOUT_S = 60.0


@dataclass(eq=False)
class FineTuneStep:
    """One job's work on a fine-tune, under its lease. Use on one event loop.

    ``reserve_memory`` returns a context manager that reserves memory for a training, while requests
    to the engine wait; None if that is not necessary. With ``low_priority``, requests that the
    worker answers during a training have priority.
    """

    fine_tunes: FineTunes
    fine_tune: FineTune
    base_model: BaseModelHandle
    settings: Settings
    progress: Progress
    reserve_memory: Callable[[], AbstractAsyncContextManager[None]] | None = None
    low_priority: bool = True
    _crashes: int = field(default=0, init=False)
    # Set while the step runs.
    _turn: Turn = field(init=False)
    _lease: Lease = field(init=False)

    async def __call__(self, turn: Turn) -> bool:
        """Do the remaining work; return False if another worker may be doing it.

        Raises:
            WorkerError: The volume fails, or the training can't run here. Another job can continue.
        """
        async with turn.acquire_lease("run") as lease:
            if lease is None:
                return False
            self._turn, self._lease = turn, lease
            try:
                await self._train_and_publish()
            except FineTuneFailed as failure:
                await self._end(FineTuneResult(status="failed", error=failure.error))
        return True

    async def _train_and_publish(self) -> None:
        """Train and publish, until the fine-tune has ended or has to stop."""
        if await asyncio.to_thread(self.fine_tune.has_ended):
            return
        if await asyncio.to_thread(self._finished_attempt) is None:
            await self._train()
        if self._lease.lost.is_set() or await asyncio.to_thread(self.fine_tune.has_ended):
            return
        if attempt := await asyncio.to_thread(self._finished_attempt):
            root, files = adapters_directory(self.settings.base_path), self.fine_tunes.files
            check_adapter = self.base_model.check_adapter
            await self._end(
                await publish_result(self.fine_tune, attempt, root, files, check_adapter)
            )
        else:
            await self._end_if_cancelled()

    async def _train(self) -> None:
        """Run attempts until one has finished, or the training has to stop."""
        reservation: AbstractAsyncContextManager[bool] = contextlib.nullcontext(enter_result=True)
        if self.reserve_memory is not None:
            # Invalid rows are no reason to interrupt the engine.
            is_checked = await asyncio.to_thread(self.fine_tune.has_checked_rows)
            if not is_checked and not await self._stop_reason():
                await self._run_attempt(check_only=True)
            if await asyncio.to_thread(self._finished_attempt) or await self._stop_reason():
                return
            reservation = reserve_memory(
                self.reserve_memory(), self._stop_reason, lambda: self._turn.is_over
            )
        async with reservation as is_reserved:
            while (
                is_reserved
                and not await asyncio.to_thread(self._finished_attempt)
                and not await self._stop_reason()
            ):
                await self._run_attempt()
            # A cancelled fine-tune ends here, because it may take a while until the engine is
            # available again after this block.
            await self._end_if_cancelled()

    async def _stop_reason(self) -> str | None:
        """Return the fine-tune's reason to stop, or "lost" or "left"; None to continue.

        "lost" means that another worker has the lease; "left", that the job's time is over.
        """
        if self._lease.lost.is_set():
            return "lost"
        if stop_reason := await asyncio.to_thread(self.fine_tune.stop_reason):
            return stop_reason
        return "left" if self._turn.is_over else None

    def _finished_attempt(self) -> Path | None:
        """Return the attempt that finished training; None if no attempt did, or after a cancel."""
        fine_tune = self.fine_tune
        if choice := fine_tune.adapter_choice:
            return fine_tune.directory / ATTEMPTS_DIR / choice.attempt
        if fine_tune.stop_reason() == "cancelled":
            return None
        for attempt in reversed(fine_tune.attempt_paths()):
            if (outcome := fine_tune.read_outcome(attempt)) and outcome.is_over:
                return attempt
        return None

    async def _end_if_cancelled(self) -> None:
        """End the fine-tune if it was cancelled, unless its result is being published."""
        finished = await asyncio.to_thread(self._finished_attempt)
        if finished is None and await self._stop_reason() == "cancelled":
            await self._end(FineTuneResult(status="cancelled"))

    async def _end(self, result: FineTuneResult) -> None:
        stored = await asyncio.to_thread(self.fine_tune.end, result)
        log.info("fine-tune %s: %s", self.fine_tune.id, stored.status)

    async def _run_attempt(self, *, check_only: bool = False) -> None:
        """Run the trainer until it has finished, crashed or been stopped.

        With ``check_only``, it only checks the rows; invalid ones end the training.
        """
        fine_tune = self.fine_tune
        first_step = await asyncio.to_thread(fine_tune.durable_step)
        # The check of the rows runs while the engine uses the memory.
        spec = await self._make_spec_once_it_fits(needs_memory=not check_only)
        if spec is None:
            return
        attempt = await asyncio.to_thread(self._create_attempt, spec)
        options = (CHECK_OPTION,) if check_only else ()
        command = (*COMMAND, str(fine_tune.directory), attempt.name, *options)
        log.info("fine-tune %s: %s", fine_tune.id, options or f"training from step {first_step}")
        low_priority, wandb = check_only or self.low_priority, spec.wandb is not None
        try:
            process = await TrainerProcess.start(command, low_priority=low_priority, wandb=wandb)
        except OSError as error:
            log.warning("the training process can't be started: %s", error)
            raise EngineBusy("This machine can't start another process.") from error
        try:
            status, was_stopped = await self._wait_for_exit(process, attempt)
        finally:
            # The process must be killed even if the job is cancelled.
            await asyncio.shield(asyncio.create_task(process.kill()))
        if status == ExitStatus.VOLUME_FAILURE:
            raise VolumeError("The volume is full, or can't be written to: the training is paused.")
        outcome = await asyncio.to_thread(fine_tune.read_outcome, attempt)
        is_over = outcome is not None and outcome.is_over
        is_checked = check_only and status == ExitStatus.FINISHED
        if is_over or is_checked or was_stopped:
            return

        # The trainer has crashed. A signal comes from outside, for example if memory is full: a
        # retry may have more of it. Otherwise a retry needs progress.
        reason = explain_exit(status, process.stderr_tail)
        step = await asyncio.to_thread(fine_tune.durable_step)
        self._crashes += 1
        is_signalled = status == ExitStatus.STOPPED or (status is not None and status < 0)
        may_be_transient = is_signalled and self._crashes == 1
        if self._crashes > MAX_CRASHES or not (step > first_step or may_be_transient):
            raise FineTuneFailed("training_failed", reason)
        log.warning("fine-tune %s: %s It continues from step %d.", fine_tune.id, reason, step)

    async def _make_spec_once_it_fits(self, *, needs_memory: bool) -> Spec | None:
        """Return the specification once a training fits into memory; None if it has to stop.

        With ``needs_memory``, the memory must be free now; otherwise, it may become free later.

        Raises:
            FineTuneFailed: The fine-tune can't be trained here.
        """
        deadline = time.monotonic() + MEMORY_TIMEOUT_S
        while True:
            try:
                spec = await asyncio.to_thread(self._make_spec)
                with contextlib.nullcontext() if needs_memory else contextlib.suppress(MemoryInUse):
                    await asyncio.to_thread(check_memory, spec)
            except VolumeError:
                raise
            except WorkerError as error:
                if not isinstance(error, MemoryInUse) or time.monotonic() > deadline:
                    raise FineTuneFailed("not_trainable", error.message, error.param) from error
            else:
                return spec
            if await self._stop_reason():
                return None
            await asyncio.sleep(POLL_S)

    def _make_spec(self) -> Spec:
        request, model, settings = self.fine_tune.request, self.base_model.model, self.settings
        if not settings.base_path.is_dir():
            raise VolumeError("There is no network volume for the adapter: set BASE_PATH.")
        directory = model_directory(model)
        locate_rows, validation_file = self.fine_tunes.locate_rows, request.validation_file
        return Spec(
            **dict(request.spec),
            model=directory,
            tokenizer=model.tokenizer.absolute() if model.tokenizer else directory,
            chat_template=model.chat_template,
            trust_remote_code=model.trust_remote_code,
            device="cpu" if model.device == "cpu" else "cuda",
            max_length=min(model.max_model_len, settings.fine_tune_max_length),
            training=locate_rows(request.training_file),
            validation=locate_rows(validation_file) if validation_file else None,
            wandb=request.wandb,
        )

    def _create_attempt(self, spec: Spec) -> Path:
        """Write the specification, and create the directory of another attempt."""
        self.fine_tunes.files.quota.reserve(0)
        with translate_os_errors():
            write_file(self.fine_tune.directory / SPEC_FILE, spec.model_dump_json().encode())
        return self.fine_tune.add_attempt(self._lease.owner)

    async def _wait_for_exit(
        self, process: TrainerProcess, attempt: Path
    ) -> tuple[int | None, bool]:
        """Wait for the exit, or stop the process; return its status, and whether it was stopped."""
        reader = ProgressReader(attempt, self.progress)
        kill_at = math.inf
        while (status := await process.wait(POLL_S)) is None:
            await asyncio.to_thread(reader.update_progress)
            stop_reason = await self._stop_reason()
            if stop_reason in ("lost", "cancelled") or time.monotonic() > kill_at:
                return await process.kill(), True
            if stop_reason and kill_at == math.inf:
                kill_at = time.monotonic() + CHECKPOINT_S
                process.terminate()
        await asyncio.to_thread(reader.update_progress)
        return status, kill_at < math.inf


@contextlib.asynccontextmanager
async def reserve_memory(
    context: AbstractAsyncContextManager[None],
    should_stop: Callable[[], Awaitable[object]],
    is_over: Callable[[], bool],
) -> AsyncGenerator[bool, None]:
    """Reserve memory for the block; yield False if the training has to stop before that.

    After the block, this waits until the engine is available again or the job's time is over.
    """
    entering = asyncio.create_task(context.__aenter__())
    try:
        while not entering.done() and not await should_stop():
            await asyncio.wait({entering}, timeout=POLL_S)
        is_reserved = entering.done()
        if is_reserved:
            entering.result()
        yield is_reserved
    finally:
        entering.cancel()
        await asyncio.wait({entering})
        if not entering.cancelled() and entering.exception() is None:
            leaving = asyncio.create_task(context.__aexit__(None, None, None))
            # The engine starts again within minutes. A job without time left doesn't wait for it,
            # because the job's response says how to continue the fine-tune.
            while not leaving.done() and not is_over():
                await asyncio.wait({leaving}, timeout=POLL_S)
            if leaving.done():
                leaving.result()
