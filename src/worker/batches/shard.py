"""One attempt at a shard of a batch, which answers the remaining lines concurrently."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

import msgspec

from worker.batches.finish import encode_result_line, line_request_id
from worker.batches.lines import BatchPlan, InputLine, InvalidLine, Shard, parse_request, read_lines
from worker.batches.parts import PartWriter, PendingLine, read_finished_lines
from worker.batches.record import Batch
from worker.batches.window import SlotWindow
from worker.errors import (
    EngineDead,
    EngineSuspended,
    InternalError,
    OnOtherVolume,
    WorkerError,
    hide_defects,
)
from worker.long_work.runner import Attempt
from worker.metrics import BATCH_LINES
from worker.record import Usage
from worker.volume import translate_os_errors

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
