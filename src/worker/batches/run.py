"""Runs a batch in a job: plans its input, answers its shards in free slots, or ends it."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
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
# Divisor of the slots for batches while there are other requests.
BUSY_DIVISOR = 32
# Seconds after the last other request during which more are expected: occasional requests must not
# find the engine full each time.
QUIET_S = 5.0

# Answers a request, from its URL, body and id; returns the answer and its usage. Raises an
# exception if the request is refused.
AnswerRequest = Callable[[str, dict[str, Any], str], Awaitable[tuple[Any, Usage]]]


class SlotWindow:
    """The engine slots that all batches of a worker share. Use on one event loop.

    Args:
        capacity: Maximum number of concurrent lines.
        count_other_requests: Returns how many other requests are running; callable from any thread.
    """

    def __init__(self, capacity: int, count_other_requests: Callable[[], int]) -> None:
        self._capacity = capacity
        self._busy_capacity = max(1, capacity // BUSY_DIVISOR)
        self._count_other_requests = count_other_requests
        self._busy_at = -math.inf
        self._running = 0
        self._events: list[asyncio.Event] = []

    @property
    def free_slot_count(self) -> int:
        """Number of lines that may begin. If it is negative, that many lines must be aborted."""
        now = time.monotonic()
        if self._count_other_requests():
            self._busy_at = now
        capacity = self._busy_capacity if now - self._busy_at < QUIET_S else self._capacity
        return capacity - self._running

    @contextlib.contextmanager
    def set_on_change(self, event: asyncio.Event) -> Iterator[None]:
        """Set an event in the block whenever lines may begin or must be aborted.

        The end of ``QUIET_S`` sets no event.
        """
        self._events.append(event)
        try:
            yield
        finally:
            self._events.remove(event)

    def take_slot(self) -> None:
        self._running += 1

    def free_slot(self) -> None:
        self._running -= 1
        self._set_events()

    def note_other_request(self) -> None:
        """Leave slots to a request that begins, and to more of its kind."""
        self._busy_at = time.monotonic()
        if self._running > self._busy_capacity:
            self._set_events()

    def _set_events(self) -> None:
        for event in self._events:
            event.set()


@dataclass(frozen=True, slots=True)
class BatchStep:
    """One job's work on a batch; other jobs may work on the same batch. Use on one event loop."""

    batches: Batches
    batch: Batch
    answer_request: AnswerRequest
    window: SlotWindow
    progress: Progress

    async def __call__(self, turn: Turn) -> bool:
        """Do a part of the work; return False if other workers are doing all remaining parts."""
        has_worked = await self._do_next_part(turn)
        await self.report_progress(await asyncio.to_thread(lambda: self.batch.plan))
        return has_worked

    async def report_progress(self, plan: BatchPlan | None) -> None:
        """Report the durable lines of all jobs."""
        counts = await asyncio.to_thread(self.batch.counts)
        total = plan.total if plan else 0
        self.progress.update(done=counts.finished, total=total, failed=counts.failed)

    async def _do_next_part(self, turn: Turn) -> bool:
        batch = self.batch
        plan = await asyncio.to_thread(lambda: batch.plan)
        if plan is None:
            return await self._run_exclusively(turn, "plan", self._plan)
        unfinished = await asyncio.to_thread(batch.unfinished_shard_indexes, plan)
        status = await asyncio.to_thread(batch.stop_reason)
        if status is None and unfinished:
            for index in unfinished:
                async with turn.acquire_lease(f"shard-{index}") as lease:
                    if lease is not None and await asyncio.to_thread(self._is_open, plan, index):
                        await self._answer_shard(turn, plan, index, lease)
                        return True
            return False

        # The end waits for other workers, which still write lines that they have finished. The
        # leases of all of them are polled, so that dead workers are found at the same time.
        is_idle = True
        for index in range(len(plan.shards)):
            if await asyncio.to_thread(batch.is_leased, f"shard-{index}"):
                async with turn.acquire_lease(f"shard-{index}") as lease:
                    is_idle = is_idle and lease is not None
        end = partial(self._end, status or "completed")
        return is_idle and await self._run_exclusively(turn, "end", end)

    async def _run_exclusively(self, turn: Turn, name: str, work: Callable[[], None]) -> bool:
        """Call a function in a thread under a lease; return False if others have the lease."""
        async with turn.acquire_lease(name) as lease:
            if lease is not None:
                await asyncio.to_thread(work)
        return lease is not None

    def _plan(self) -> None:
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

    def _is_open(self, plan: BatchPlan, index: int) -> bool:
        """Return whether a shard is unfinished and the batch doesn't have to stop."""
        batch = self.batch
        return batch.stop_reason() is None and index in batch.unfinished_shard_indexes(plan)

    async def _answer_shard(self, turn: Turn, plan: BatchPlan, index: int, lease: Lease) -> None:
        """Answer the lines of a shard; if the input has changed, decide that the batch fails."""
        path = await asyncio.to_thread(self.batches.find_unchanged_input, self.batch, plan)
        if path is None or not await ShardRun(self, plan, index, path).run(turn, lease):
            await asyncio.to_thread(self.batch.decide_ending, "failed")

    def _end(self, status: EndStatus) -> None:
        if not self.batch.has_ended():
            result = self.batches.end(self.batch, status)
            log.info("batch %s: %s", self.batch.id, result.status)


@dataclass(eq=False)
class ShardRun:
    """Answers the lines of a shard concurrently, under its lease. Use on one event loop."""

    step: BatchStep
    plan: BatchPlan
    index: int  # of the shard
    input_path: Path
    _running: dict[asyncio.Task[None], InputLine] = field(default_factory=dict, init=False)
    # Set when a line is done, or when another batch or request changes the free slots.
    _slots_changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _failure: BaseException | None = field(default=None, init=False)

    async def run(self, turn: Turn, lease: Lease) -> bool:
        """Answer the lines that have no result in any part; return False if the input has changed.

        Stop earlier if the time is over, another worker has the shard, or the batch has to stop.

        Raises:
            WorkerError: The engine is dead, the volume fails, or a line is no longer valid.
        """
        step, batch, plan, window = self.step, self.step.batch, self.plan, self.step.window
        directory, shard = batch.parts_directory, plan.shards[self.index]
        finished, shard_counts = await asyncio.to_thread(self._read_finished)
        path = part_path(directory, self.index, lease.owner)
        part = PartWriter(path, shard_counts, step.batches.files.quota.reserve)
        all_lines = read_lines(self.input_path, step.batches.limits.max_line_bytes, shard)
        unanswered = (line for line in all_lines if line.number not in finished)
        endpoint = (await asyncio.to_thread(lambda: batch.request)).endpoint
        next_lines: list[InputLine] = []
        is_exhausted = False
        polled_at = time.monotonic()
        if len(finished) >= shard.count:
            # Several workers have answered the shard together, so that none has counted all lines.
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
                        window.take_slot()
                        line = next_lines.pop()
                        task = asyncio.create_task(self._answer_line(line, endpoint, part))
                        self._running[task] = line
                        task.add_done_callback(self._on_line_done)
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
                        # Other jobs may answer other shards.
                        await step.report_progress(plan)
                        if await self._has_to_stop(deadline, lease):
                            return True
        finally:
            running = tuple(self._running)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await part.close()

    def _read_finished(self) -> tuple[set[int], LineCounts]:
        """Return the numbers of the shard's finished lines, and their counts."""
        with translate_os_errors():
            lines = read_finished_lines(self.step.batch.parts_directory, shard=self.index)
        return {*lines}, sum((line.counts for line in lines.values()), LineCounts())

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
            return lines if self.plan.matches_input(self.input_path) else None

    def _preempt_lines(self) -> list[InputLine]:
        """Abort the lines that began last if other requests need their slots; return them."""
        lines: list[InputLine] = []
        while self._running and self.step.window.free_slot_count < 0:
            task, line = self._running.popitem()
            self.step.window.free_slot()
            if task.cancel():
                lines.append(line)
        return lines

    async def _has_to_stop(self, deadline: float, lease: Lease) -> bool:
        stop_reason = await asyncio.to_thread(self.step.batch.stop_reason)
        if lease.lost.is_set() or stop_reason is not None:
            return True
        now = time.monotonic()
        return now >= deadline and (not self._running or now >= deadline + ABORT_GRACE_S)

    def _on_line_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._failure = self._failure or error
        # This also sets the event, unlike ``asyncio.wait``, which would iterate over all running
        # lines each time a line is done.
        if self._running.pop(task, None) is not None:
            self.step.window.free_slot()

    async def _answer_line(self, line: InputLine, endpoint: str, part: PartWriter) -> None:
        batch = self.step.batch
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
        BATCH_LINES.labels("failed" if failed else "completed").inc()

    async def _answer_with_retries(
        self, endpoint: str, body: dict[str, Any], id: str
    ) -> tuple[int, Any, Usage]:
        """Return the status, the body, which is JSON or an error, and the usage of an answer."""
        delays = iter(RETRY_DELAYS_S)
        while True:
            try:
                with hide_defects(id):
                    answer, usage = await self.step.answer_request(endpoint, body, id)
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
