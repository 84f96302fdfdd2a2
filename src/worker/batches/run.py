"""Runs a batch in a job: plans its input, answers its shards, or ends it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from worker.batches.lines import (
    INPUT_CHANGED,
    BatchPlan,
    InputLine,
    InvalidLine,
    parse_request,
    plan_input,
    read_lines,
)
from worker.batches.parts import (
    LineCounts,
    PartWriter,
    encode_result_line,
    line_request_id,
    part_path,
    read_finished_lines,
)
from worker.batches.record import PLAN, Batch, Batches, EndStatus
from worker.batches.window import SlotWindow
from worker.errors import (
    EngineDead,
    EngineSuspended,
    InternalError,
    NoSuchObject,
    OnOtherVolume,
    WorkerError,
    hide_defects,
)
from worker.long_work.runner import Turn
from worker.metrics import BATCH_LINES
from worker.progress import Progress
from worker.record import Usage
from worker.volume import translate_os_errors
from worker.volume.lease import Lease

log = logging.getLogger(__name__)

# Seconds before the end of a job's time from which on no line begins, so that running lines can
# finish.
WIND_DOWN_S = 30.0
# Seconds after the deadline until running lines are aborted.
ABORT_GRACE_S = 20.0
# Seconds between two checks whether the turn has to stop.
POLL_S = 1.0
# Seconds before each retry of a line with a retryable error.
RETRY_DELAYS_S = (1.0, 2.0, 4.0)
# Number of lines, and bytes of their texts, after which a read from the disk stops.
READ_AHEAD_LINES = 256
READ_AHEAD_BYTES = 8_000_000

# Answers a request, from its URL, body and id; returns the answer and its usage. Raises an
# exception if the request is refused.
AnswerRequest = Callable[[str, dict[str, Any], str], Awaitable[tuple[Any, Usage]]]


class BatchStep:
    """One job's work on a batch; other jobs may work on the same batch. Use on one event loop.

    Args:
        batches: Batches of the volume.
        batch: Batch to run.
        answer_request: Answers the request in a line.
        window: Limits the lines that run concurrently.
        progress: Progress that this step updates.
    """

    def __init__(
        self,
        batches: Batches,
        batch: Batch,
        answer_request: AnswerRequest,
        window: SlotWindow,
        progress: Progress,
    ) -> None:
        self.batches = batches
        self.batch = batch
        self.answer_request = answer_request
        self.window = window
        self.progress = progress

    async def __call__(self, turn: Turn) -> bool:
        """Do a part of the work; return False if other workers are doing all remaining parts."""
        has_worked = await self._do_next_part(turn)
        plan, counts = await asyncio.to_thread(lambda: (self.batch.plan, self.batch.counts()))
        total = plan.total if plan else 0
        self.progress.update(done=counts.finished, total=total, failed=counts.failed)
        return has_worked

    async def _do_next_part(self, turn: Turn) -> bool:
        batch = self.batch
        plan = await asyncio.to_thread(lambda: batch.plan)
        if plan is None:
            return await self._run_exclusively(turn, "plan", self._plan_batch)
        unfinished = await asyncio.to_thread(batch.unfinished_shard_indexes, plan)
        status = await asyncio.to_thread(batch.stop_reason)
        if status is not None or not unfinished:
            # The end waits for other workers, which still write lines that they have finished.
            names = [f"shard-{index}" for index in range(len(plan.shards))]
            idle = [await self._is_lease_free(turn, name) for name in names]
            end = partial(self._end_batch, status or "completed")
            return all(idle) and await self._run_exclusively(turn, "end", end)
        for index in unfinished:
            async with turn.acquire_lease(f"shard-{index}") as lease:
                if lease is not None and await asyncio.to_thread(self._is_shard_open, plan, index):
                    await self._run_shard(turn, plan, index, lease)
                    return True
        return False

    async def _run_exclusively(self, turn: Turn, name: str, work: Callable[[], None]) -> bool:
        """Call a function in a thread under a lease; return False if others have the lease."""
        async with turn.acquire_lease(name) as lease:
            if lease is not None:
                await asyncio.to_thread(work)
        return lease is not None

    async def _is_lease_free(self, turn: Turn, name: str) -> bool:
        """Return whether no living worker has the lease with this name."""
        if not await asyncio.to_thread(self.batch.is_leased, name):
            return True
        async with turn.acquire_lease(name) as lease:
            return lease is not None

    def _is_shard_open(self, plan: BatchPlan, index: int) -> bool:
        """Return whether a shard is unfinished and the batch doesn't have to stop."""
        batch = self.batch
        return batch.stop_reason() is None and index in batch.unfinished_shard_indexes(plan)

    def _plan_batch(self) -> None:
        batch, batches, request = self.batch, self.batches, self.batch.request
        if batch.has_file(PLAN) or batch.has_ended():
            return
        now = int(time.time())
        try:
            file = batches.files.get(request.input_file_id, include_expired=True)
            path = batches.files.content_path(file)
        except (NoSuchObject, OnOtherVolume):
            batches.fail(batch, [INPUT_CHANGED])
            return
        with translate_os_errors():
            plan = plan_input(path, request.endpoint, batches.limits, request.data_parallelism, now)
        if isinstance(plan, BatchPlan):
            batch.write_file(PLAN, plan)
        else:
            batches.fail(batch, plan)

    async def _run_shard(self, turn: Turn, plan: BatchPlan, index: int, lease: Lease) -> None:
        path = await asyncio.to_thread(self.batches.find_unchanged_input, self.batch, plan)
        if path is None or not await ShardRun(self, plan, index, path).run(turn, lease):
            await asyncio.to_thread(self.batch.decide_ending, "failed")

    def _end_batch(self, status: EndStatus) -> None:
        if not self.batch.has_ended():
            result = self.batches.end(self.batch, status)
            log.info("batch %s: %s", self.batch.id, result.status)


class ShardRun:
    """A turn at a shard, which answers its lines concurrently. Use on one event loop.

    Args:
        step: Step of the batch.
        plan: Plan of the batch.
        index: Index of the shard.
        input_path: Path of the batch's input.
    """

    def __init__(self, step: BatchStep, plan: BatchPlan, index: int, input_path: Path) -> None:
        self._step = step
        self._plan = plan
        self._index = index
        self._input_path = input_path
        # Counts of the whole batch.
        self._counts = LineCounts()
        self._running: dict[asyncio.Task[None], InputLine] = {}
        # Set when a line is done, or when another batch or request changes the free slots.
        self._slots_changed = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self, turn: Turn, lease: Lease) -> bool:
        """Answer the lines that have no result in any part; return False if the input has changed.

        Stop earlier if the time is over, another worker has the shard, or the batch has to stop.

        Args:
            turn: Turn with the deadline for starting lines.
            lease: Lease of the shard.

        Raises:
            WorkerError: The engine is dead, the volume fails, or a line is no longer valid.
        """
        step, batch, plan, window = self._step, self._step.batch, self._plan, self._step.window
        limits, quota = step.batches.limits, step.batches.files.quota
        directory, shard = batch.parts_directory, plan.shards[self._index]
        with translate_os_errors():
            finished = await asyncio.to_thread(read_finished_lines, directory, shard=self._index)
        # The lines of other shards, which other jobs may answer, are counted again after this one.
        self._counts = await asyncio.to_thread(batch.counts)
        shard_counts = sum((line.counts for line in finished.values()), LineCounts())
        part = PartWriter(
            part_path(directory, self._index, lease.owner), shard_counts, quota.reserve
        )
        all_lines = read_lines(self._input_path, limits.max_line_bytes, shard)
        unanswered = (line for line in all_lines if line.number not in finished)
        endpoint = (await asyncio.to_thread(lambda: batch.request)).endpoint
        next_lines: list[InputLine] = []
        is_exhausted = False
        polled_at = time.monotonic()
        if len(finished) >= shard.count:
            # Several turns have answered the shard together, so that none has counted all lines.
            await part.add_counts()
        try:
            with window.set_on_change(self._slots_changed):
                while True:
                    if not next_lines and not is_exhausted:
                        lines = await asyncio.to_thread(self._read_ahead, unanswered)
                        if lines is None:
                            return False
                        next_lines, is_exhausted = lines[::-1], not lines

                    deadline = turn.deadline
                    next_lines += self._preempt_lines()
                    while (
                        next_lines
                        and window.free_slot_count > 0
                        and time.monotonic() < deadline
                        and not lease.lost.is_set()
                    ):
                        self._start_line(next_lines.pop(), endpoint, part)
                    if is_exhausted and not next_lines and not self._running:
                        return True

                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(POLL_S):
                            await self._slots_changed.wait()
                    self._slots_changed.clear()
                    if self._failure is not None:
                        raise self._failure
                    if time.monotonic() - polled_at >= POLL_S:
                        polled_at = time.monotonic()
                        part.raise_commit_error()
                        step.progress.update(
                            done=self._counts.finished, total=plan.total, failed=self._counts.failed
                        )
                        if await self._has_to_stop(deadline, lease):
                            return True
        finally:
            running = tuple(self._running)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await part.close()

    def _read_ahead(self, unanswered: Iterator[InputLine]) -> list[InputLine] | None:
        """Return the next lines; an empty list at the end, or None if the input has changed."""
        lines: list[InputLine] = []
        size = 0
        with translate_os_errors():
            try:
                while len(lines) < READ_AHEAD_LINES and size < READ_AHEAD_BYTES:
                    if (line := next(unanswered, None)) is None:
                        break
                    lines.append(line)
                    size += len(line.text or b"")
            except FileNotFoundError:
                return None
            return lines if self._plan.matches_input(self._input_path) else None

    async def _has_to_stop(self, deadline: float, lease: Lease) -> bool:
        stop_reason = await asyncio.to_thread(self._step.batch.stop_reason)
        if lease.lost.is_set() or stop_reason is not None:
            return True
        now = time.monotonic()
        return now >= deadline and (not self._running or now >= deadline + ABORT_GRACE_S)

    def _start_line(self, line: InputLine, endpoint: str, part: PartWriter) -> None:
        self._step.window.take_slot()
        task = asyncio.create_task(self._process_line(line, endpoint, part))
        self._running[task] = line
        task.add_done_callback(self._on_line_done)

    def _preempt_lines(self) -> list[InputLine]:
        """Abort the lines that began last if other requests need their slots; return them."""
        lines: list[InputLine] = []
        while self._running and self._step.window.free_slot_count < 0:
            task, line = self._running.popitem()
            self._step.window.free_slot()
            if task.cancel():
                lines.append(line)
        return lines

    def _on_line_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failure = self._failure or task.exception()
        # This also sets the event, unlike ``asyncio.wait``, which would iterate over all running
        # lines each time a line is done.
        if self._running.pop(task, None) is not None:
            self._step.window.free_slot()

    async def _process_line(self, line: InputLine, endpoint: str, part: PartWriter) -> None:
        batch = self._step.batch
        try:
            request = parse_request(line, endpoint)
        except InvalidLine as error:
            # The input was valid when it was planned, so it has changed since then.
            raise InternalError from error
        id = line_request_id(batch.id, line.number)
        status, body, usage = await self._answer_with_retries(endpoint, request["body"], id)
        response = {"status_code": status, "request_id": id, "body": body}
        result = encode_result_line(batch.id, line.number, request["custom_id"], response=response)
        failed = status >= 400
        counts = LineCounts(
            int(not failed), int(failed), usage.prompt_tokens or 0, usage.output_tokens or 0
        )
        await part.add_line(line.number, result, counts)
        self._counts += counts
        BATCH_LINES.labels("failed" if failed else "completed").inc()

    async def _answer_with_retries(
        self, endpoint: str, body: dict[str, Any], id: str
    ) -> tuple[int, Any, Usage]:
        """Return the status, the body, which is JSON or an error, and the usage of an answer."""
        delays = iter(RETRY_DELAYS_S)
        while True:
            try:
                with hide_defects(id):
                    answer, usage = await self._step.answer_request(endpoint, body, id)
                    try:
                        return 200, msgspec.Raw(msgspec.json.encode(answer)), usage
                    except UnicodeEncodeError:
                        # Half of a surrogate pair fails only this line.
                        raise InternalError from None
            except WorkerError as error:
                # A line waits for a suspended engine without a time limit.
                delay_s = POLL_S if isinstance(error, EngineSuspended) else next(delays, None)
                # This worker's volume stays the same.
                can_help = error.retryable and not isinstance(error, OnOtherVolume)
                if can_help and delay_s is not None:
                    await asyncio.sleep(delay_s)
                    continue
                if isinstance(error, EngineDead):
                    raise
                return error.status, error.body(id), Usage()
