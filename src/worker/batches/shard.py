"""One attempt at a shard of a batch: its lines that have no answer yet, many at once."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

import msgspec

from worker.batches.finish import output_line, request_id
from worker.batches.lines import Line, Plan, Shard, WrongLineError, lines, request_in
from worker.batches.parts import Part, Row, finished
from worker.batches.record import Batch
from worker.batches.window import Window
from worker.errors import EngineAside, EngineDead, InternalError, WorkerError, defects_hidden
from worker.long_work.attempt import Attempt
from worker.record import Usage
from worker.volume import failures

# Seconds between two looks at whether to stop.
LOOK_S = 1.0
# Seconds until the window is looked at again.
PAUSE_S = 0.02
# Seconds before lines are given up that still run when the time is over.
PATIENCE_S = 20.0
# Seconds between two tries of a line that a retry can help.
PAUSES_S = (1.0, 2.0, 4.0)
# Lines that are read from the disk at once, and their bytes, but for the last one's.
READ_AHEAD = 256
READ_AHEAD_BYTES = 8_000_000

# Answers a request: its URL, its body and its id. A refusal is raised.
Ask = Callable[[str, dict[str, Any], str], Awaitable[tuple[Any, Usage]]]


class Stop(Enum):
    """Why an attempt ended."""

    DONE = auto()
    LOST = auto()  # another worker has the shard
    ASKED = auto()  # the batch was cancelled, or has expired
    TIME = auto()
    CHANGED = auto()  # the input is no more the one that was planned


@dataclass
class ShardRun:
    """An attempt. Use on one loop.

    Args:
        batch: that the shard belongs to.
        path: of the input.
        plan: of the batch.
        longest: bytes of a line.
        shard: the lines.
        name: of this attempt's part.
        ask: answers a line.
        window: how many may be answered at once.
        progress: called every second.
    """

    batch: Batch
    path: Path
    plan: Plan
    longest: int
    shard: Shard
    name: str
    ask: Ask
    window: Window
    progress: Callable[[], Awaitable[None]]
    _running: dict[asyncio.Task[None], Line] = field(default_factory=dict)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: BaseException | None = None

    async def run(self, attempt: Attempt, lost: Callable[[], bool]) -> Stop:
        """Answer the lines that no part has.

        Args:
            attempt: says until when lines may begin.
            lost: returns whether another worker has taken the shard.

        Raises:
            WorkerError: the engine is dead, or the volume fails.
        """
        with failures():
            known = set(await asyncio.to_thread(finished, self.batch.parts, texts=True))
        waiting = (
            line for line in lines(self.path, self.longest, self.shard) if line.number not in known
        )
        request = await asyncio.to_thread(lambda: self.batch.request)
        part = Part(self.batch.parts, self.name)
        try:
            return await self._answer_all(waiting, request.endpoint, part, attempt, lost)
        finally:
            running = tuple(self._running)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await part.close()

    async def _answer_all(
        self,
        waiting: Iterator[Line],
        endpoint: str,
        part: Part,
        attempt: Attempt,
        lost: Callable[[], bool],
    ) -> Stop:
        read: list[Line] = []
        all_read = False
        looked_at = time.monotonic()
        while True:
            if not read and not all_read:
                found = await asyncio.to_thread(self._some, waiting)
                if found is None:
                    return Stop.CHANGED
                read, all_read = found[::-1], not found
            until = attempt.until
            read += self._taken_back()
            while read and self.window.room > 0 and time.monotonic() < until and not lost():
                self._begin(read.pop(), endpoint, part)
            if all_read and not read and not self._running:
                return Stop.DONE
            await self._some_settled(PAUSE_S if read else LOOK_S)
            if time.monotonic() - looked_at >= LOOK_S:
                looked_at = time.monotonic()
                part.check()
                await self.progress()
                if stop := await self._asked_to_stop(until, lost):
                    return stop

    def _some(self, waiting: Iterator[Line]) -> list[Line] | None:
        """Read some lines; none: there are no more; None: the input has changed."""
        found: list[Line] = []
        size = 0
        with failures():
            try:
                while len(found) < READ_AHEAD and size < READ_AHEAD_BYTES:
                    if (line := next(waiting, None)) is None:
                        break
                    found.append(line)
                    size += len(line.text or b"")
            except FileNotFoundError:
                return None
            return found if self.plan.holds(self.path) else None

    async def _asked_to_stop(self, deadline: float, lost: Callable[[], bool]) -> Stop | None:
        if lost():
            return Stop.LOST
        if await asyncio.to_thread(self.batch.stopping):
            return Stop.ASKED
        now = time.monotonic()
        over = now >= deadline and (not self._running or now >= deadline + PATIENCE_S)
        return Stop.TIME if over else None

    def _begin(self, line: Line, endpoint: str, part: Part) -> None:
        self.window.running += 1
        task = asyncio.create_task(self._line(line, endpoint, part))
        self._running[task] = line
        task.add_done_callback(self._ended)

    def _taken_back(self) -> list[Line]:
        """Abort the youngest lines that have to make room for others, and return them."""
        lines: list[Line] = []
        while self._running and self.window.room < 0:
            task, line = self._running.popitem()
            self.window.running -= 1
            if task.cancel():
                lines.append(line)
        return lines

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._running.pop(task, None) is not None:
            self.window.running -= 1
        if not task.cancelled():
            self._failure = self._failure or task.exception()
        # Not asyncio.wait, which would look at all lines whenever one has its answer.
        self._settled.set()

    async def _some_settled(self, patience_s: float) -> None:
        """Wait until a line has its answer, or for a while.

        Raises:
            WorkerError: no line can be answered any more.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._settled.wait()
        self._settled.clear()
        if self._failure is not None:
            raise self._failure

    async def _line(self, line: Line, endpoint: str, part: Part) -> None:
        try:
            found = request_in(line, endpoint)
        except WrongLineError as wrong:
            # The input was valid once: what is read now is no more the file that was planned.
            raise InternalError from wrong
        name = request_id(self.batch.id, line.number)
        status, body, usage = await self._answered(endpoint, found["body"], name)
        response = {"status_code": status, "request_id": name, "body": body}
        text = output_line(self.batch.id, line.number, found["custom_id"], response=response)
        counts = (usage.prompt_tokens or 0, usage.output_tokens or 0)
        await part.add(Row(line.number, status >= 400, *counts, text.rstrip(b"\n")))

    async def _answered(
        self, endpoint: str, body: dict[str, Any], name: str
    ) -> tuple[int, Any, Usage]:
        pauses = iter(PAUSES_S)
        while True:
            try:
                with defects_hidden(name):
                    answer, usage = await self.ask(endpoint, body, name)
                    return 200, _encodable(answer), usage
            except WorkerError as error:
                # A line waits for an engine that is set aside, however long that takes.
                pause_s = LOOK_S if isinstance(error, EngineAside) else next(pauses, None)
                if error.retryable and pause_s is not None:
                    await asyncio.sleep(pause_s)
                    continue
                if isinstance(error, EngineDead):
                    raise
                return error.status, error.body(name), Usage()


def _encodable(answer: Any) -> Any:
    """Return an answer as JSON, so that one that has half a character fails alone, and here."""
    with contextlib.suppress(UnicodeEncodeError):
        return msgspec.Raw(msgspec.json.encode(answer))
    raise InternalError
