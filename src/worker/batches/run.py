"""Runs a batch in a job: plans its input, answers its shards, or ends it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from worker.batches.lines import (
    INPUT_CHANGED,
    BatchPlan,
    InputLine,
    InvalidLine,
    Shard,
    parse_request,
    plan_input,
    read_lines,
)
from worker.batches.parts import (
    PartWriter,
    PendingLine,
    encode_result_line,
    line_request_id,
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
from worker.long_work.runner import Attempt
from worker.metrics import BATCH_LINES
from worker.progress import Progress
from worker.record import Usage
from worker.volume import translate_os_errors
from worker.volume.lease import Lease

log = logging.getLogger(__name__)

# Seconds before the end of a job's time from which on no line begins, so that running lines can
# finish.
WIND_DOWN_S = 30.0
# Seconds between two checks whether the attempt has to stop.
POLL_S = 1.0
# Seconds after the deadline until running lines are aborted.
ABORT_GRACE_S = 20.0
# Seconds before each retry of a line with a retryable error.
RETRY_DELAYS_S = (1.0, 2.0, 4.0)
# Number of lines, and bytes of their texts, after which a read from the disk stops.
READ_AHEAD_LINES = 256
READ_AHEAD_BYTES = 8_000_000

# Answers a request, from its URL, body and id; returns the answer and its usage. Raises an
# exception if the request is refused.
AnswerRequest = Callable[[str, dict[str, Any], str], Awaitable[tuple[Any, Usage]]]


class StopReason(Enum):
    """Why an attempt at a shard stopped."""

    DONE = auto()
    LEASE_LOST = auto()  # another worker has the shard
    BATCH_STOPPED = auto()  # the batch was cancelled, has expired, or its ending was decided
    OUT_OF_TIME = auto()
    INPUT_CHANGED = auto()  # the input has changed since it was planned


@dataclass
class ShardRun:
    """An attempt at a shard. Use on one event loop.

    Args:
        batch: Batch of the shard.
        input_path: Path of the batch's input.
        plan: Plan of the batch.
        max_line_bytes: Maximum bytes of a line.
        shard: Shard to answer.
        part_name: Name of this attempt's part, without a suffix.
        answer_request: Answers the request in a line.
        window: Limits the lines that run concurrently.
        reserve: Counts bytes that are about to be written; see ``PartWriter``.
        report_progress: Reports the progress of the batch; called about every second.
    """

    batch: Batch
    input_path: Path
    plan: BatchPlan
    max_line_bytes: int
    shard: Shard
    part_name: str
    answer_request: AnswerRequest
    window: SlotWindow
    reserve: Callable[[int], None]
    report_progress: Callable[[], Awaitable[None]]
    _running: dict[asyncio.Task[None], InputLine] = field(default_factory=dict)
    # Set when a line is done, or when another batch or request changes the free slots.
    _slots_changed: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: BaseException | None = None

    async def run(self, attempt: Attempt, is_lost: Callable[[], bool]) -> StopReason:
        """Answer the lines that have no response in any part; return why the attempt stopped.

        Args:
            attempt: Attempt with the deadline for starting lines.
            is_lost: Returns whether another worker has taken over the shard.

        Raises:
            WorkerError: The engine is dead, the volume fails, or a line is no longer valid.
        """
        directory = self.batch.parts_directory
        with translate_os_errors():
            finished = set(
                await asyncio.to_thread(read_finished_lines, directory, check_texts=True)
            )
        all_lines = read_lines(self.input_path, self.max_line_bytes, self.shard)
        unanswered = (line for line in all_lines if line.number not in finished)
        endpoint = (await asyncio.to_thread(lambda: self.batch.request)).endpoint
        part = PartWriter(directory, self.part_name, self.reserve)
        next_lines: list[InputLine] = []
        is_exhausted = False
        polled_at = time.monotonic()
        try:
            with self.window.set_on_change(self._slots_changed):
                while True:
                    if not next_lines and not is_exhausted:
                        lines = await asyncio.to_thread(self._read_ahead, unanswered)
                        if lines is None:
                            return StopReason.INPUT_CHANGED
                        next_lines, is_exhausted = lines[::-1], not lines
                    deadline = attempt.deadline
                    next_lines += self._preempt_lines()
                    while (
                        next_lines
                        and self.window.free_slot_count > 0
                        and time.monotonic() < deadline
                        and not is_lost()
                    ):
                        self._start_line(next_lines.pop(), endpoint, part)
                    if is_exhausted and not next_lines and not self._running:
                        return StopReason.DONE
                    await self._wait_for_change()
                    if time.monotonic() - polled_at >= POLL_S:
                        polled_at = time.monotonic()
                        part.raise_commit_error()
                        await self.report_progress()
                        if stop := await self._stop_reason(deadline, is_lost):
                            return stop
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
            return lines if self.plan.matches_input(self.input_path) else None

    async def _stop_reason(self, deadline: float, is_lost: Callable[[], bool]) -> StopReason | None:
        if is_lost():
            return StopReason.LEASE_LOST
        if await asyncio.to_thread(self.batch.stop_reason):
            return StopReason.BATCH_STOPPED
        now = time.monotonic()
        is_over = now >= deadline and (not self._running or now >= deadline + ABORT_GRACE_S)
        return StopReason.OUT_OF_TIME if is_over else None

    def _start_line(self, line: InputLine, endpoint: str, part: PartWriter) -> None:
        self.window.take_slot()
        task = asyncio.create_task(self._process_line(line, endpoint, part))
        self._running[task] = line
        task.add_done_callback(self._on_line_done)

    def _preempt_lines(self) -> list[InputLine]:
        """Abort the lines that began last if other requests need their slots; return them."""
        lines: list[InputLine] = []
        while self._running and self.window.free_slot_count < 0:
            task, line = self._running.popitem()
            self.window.free_slot()
            if task.cancel():
                lines.append(line)
        return lines

    def _on_line_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failure = self._failure or task.exception()
        # This also sets the event, unlike ``asyncio.wait``, which would iterate over all running
        # lines each time a line is done.
        if self._running.pop(task, None) is not None:
            self.window.free_slot()

    async def _wait_for_change(self) -> None:
        """Wait until a line is done or the free slots have changed, at most for ``POLL_S``.

        Raises:
            WorkerError: A line has stopped the attempt; see ``run``.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._slots_changed.wait()
        self._slots_changed.clear()
        if self._failure is not None:
            raise self._failure

    async def _process_line(self, line: InputLine, endpoint: str, part: PartWriter) -> None:
        try:
            request = parse_request(line, endpoint)
        except InvalidLine as error:
            # The input was valid when it was planned, so it has changed since then.
            raise InternalError from error
        id = line_request_id(self.batch.id, line.number)
        status, body, usage = await self._answer_with_retries(endpoint, request["body"], id)
        response = {"status_code": status, "request_id": id, "body": body}
        text = encode_result_line(
            self.batch.id, line.number, request["custom_id"], response=response
        )
        counts = (usage.prompt_tokens or 0, usage.output_tokens or 0)
        await part.add_line(PendingLine(line.number, status >= 400, *counts, text.rstrip(b"\n")))
        BATCH_LINES.labels("failed" if status >= 400 else "completed").inc()

    async def _answer_with_retries(
        self, endpoint: str, body: dict[str, Any], id: str
    ) -> tuple[int, Any, Usage]:
        delays = iter(RETRY_DELAYS_S)
        while True:
            try:
                with hide_defects(id):
                    answer, usage = await self.answer_request(endpoint, body, id)
                    return 200, _encode_answer_as_json(answer), usage
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


def _encode_answer_as_json(answer: Any) -> Any:
    """Encode an answer as JSON; for an unpaired surrogate, raise an error of only this line."""
    with contextlib.suppress(UnicodeEncodeError):
        return msgspec.Raw(msgspec.json.encode(answer))
    raise InternalError


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
        self._batches = batches
        self._batch = batch
        self._answer_request = answer_request
        self._window = window
        self._progress = progress

    async def __call__(self, attempt: Attempt) -> bool:
        """Do a part of the work; return False if other workers are doing all remaining parts.

        Raises:
            WorkerError: The engine is dead, or the volume fails.
        """
        done = await self._do_next_part(attempt)
        await self._update_progress()
        return done

    async def _do_next_part(self, attempt: Attempt) -> bool:
        plan = await asyncio.to_thread(lambda: self._batch.plan)
        if plan is None:
            return await self._run_exclusively(attempt, "plan", self._plan_batch)
        unfinished = await asyncio.to_thread(self._batch.unfinished_shard_indexes, plan)
        if status := await asyncio.to_thread(self._batch.stop_reason):
            # The end waits for other workers, which still write lines that they have finished.
            idle = [await self._is_lease_free(attempt, f"shard-{index}") for index in unfinished]
            end = partial(self._end_batch, plan, status)
            return all(idle) and await self._run_exclusively(attempt, "end", end)
        if not unfinished:
            end = partial(self._end_batch, plan, "completed")
            return await self._run_exclusively(attempt, "end", end)
        for index in unfinished:
            async with attempt.acquire_lease(f"shard-{index}") as lease:
                if lease is not None and await asyncio.to_thread(self._is_shard_open, plan, index):
                    await self._run_shard(attempt, plan, index, lease)
                    return True
        return False

    async def _run_exclusively(self, attempt: Attempt, name: str, work: Callable[[], None]) -> bool:
        """Call a function in a thread under a lease; return False if others have the lease."""
        async with attempt.acquire_lease(name) as lease:
            if lease is not None:
                await asyncio.to_thread(work)
        return lease is not None

    async def _is_lease_free(self, attempt: Attempt, name: str) -> bool:
        """Return whether no living worker has the lease with this name."""
        if not await asyncio.to_thread(self._batch.is_leased, name):
            return True
        async with attempt.acquire_lease(name) as lease:
            return lease is not None

    def _is_shard_open(self, plan: BatchPlan, index: int) -> bool:
        """Return whether a shard is unfinished and the batch doesn't have to stop."""
        return self._batch.stop_reason() is None and index in self._batch.unfinished_shard_indexes(
            plan
        )

    def _end_batch(self, plan: BatchPlan, status: EndStatus) -> None:
        batch = self._batch
        if batch.has_ended() or (status == "completed" and not batch.verify_or_reopen_shards(plan)):
            return
        result = self._batches.end(batch, status)
        log.info("batch %s: %s", batch.id, result.status)

    def _plan_batch(self) -> None:
        batch, files, request = self._batch, self._batches.files, self._batch.request
        if batch.has_file(PLAN) or batch.has_ended():
            return
        now = int(time.time())
        try:
            path = files.content_path(files.get(request.input_file_id, include_expired=True))
        except (NoSuchObject, OnOtherVolume):
            self._batches.fail(batch, [INPUT_CHANGED])
            return
        with translate_os_errors():
            plan = plan_input(
                path, request.endpoint, self._batches.limits, request.data_parallelism, now
            )
        if isinstance(plan, BatchPlan):
            batch.write_file(PLAN, plan)
        else:
            self._batches.fail(batch, plan)

    async def _run_shard(self, attempt: Attempt, plan: BatchPlan, index: int, lease: Lease) -> None:
        path = await asyncio.to_thread(self._batches.find_unchanged_input, self._batch, plan)
        stop = StopReason.INPUT_CHANGED
        if path is not None:
            run = ShardRun(
                batch=self._batch,
                input_path=path,
                plan=plan,
                max_line_bytes=self._batches.limits.max_line_bytes,
                shard=plan.shards[index],
                part_name=f"{index}.{lease.owner}",
                answer_request=self._answer_request,
                window=self._window,
                reserve=self._batches.files.quota.reserve,
                report_progress=self._update_progress,
            )
            stop = await run.run(attempt, lease.lost.is_set)
        if stop is StopReason.DONE:
            await asyncio.to_thread(self._batch.mark_shard_done, index)
        if stop is StopReason.INPUT_CHANGED:
            await asyncio.to_thread(self._batch.decide_ending, "failed")

    async def _update_progress(self) -> None:
        counts = await asyncio.to_thread(self._batch.counts)
        done = counts.completed + counts.failed
        self._progress.update(done=done, total=counts.total, failed=counts.failed)
