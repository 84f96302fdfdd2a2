"""The worker: a job in, the yields of its answer out. Errors are rendered here and only here."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from worker import dialects
from worker.bridge import Stream, at_end_of_task
from worker.chunking import YIELD_LIMIT_BYTES, Chunker, ChunkPolicy, Piece
from worker.engine import Engines
from worker.errors import AnswerTooLarge, EngineBusy, WorkerError, defects_hidden
from worker.job import AnyJob, Budget, Job, ListJob
from worker.long_work.kinds import KINDS, LongWork
from worker.process.concurrency import jobs_at_once, most_inside
from worker.progress import Report, reporting
from worker.record import UNANSWERED, JobRecord
from worker.routes.answer import Answer, json_size
from worker.routes.resources import Resources, Start
from worker.settings import Settings
from worker.volume.links import Links

# Keys of inputs that may take long to validate.
LONG = ListJob.marks | KINDS.keys()
# Waits for further pieces of an answer, as ``Stream.read``.
Read = Callable[..., Awaitable[list[Piece[Any]] | None]]


class Worker:
    """Answers jobs with its engines: any number at once, on the event loops of the callers."""

    def __init__(
        self,
        engines: Engines,
        settings: Settings,
        report: Report | None = None,
        limit: float = YIELD_LIMIT_BYTES,
        start: Start | None = None,
        seconds: float | None = None,
    ) -> None:
        """Make a worker.

        Args:
            engines: loaded, on a loop of their own.
            settings: the worker's.
            report: sends progress of long lists to the platform; None: nobody wants it.
            limit: the most that a yield may have, in bytes as JSON.
            start: starts long work; None: callers have to send the job that runs it.
            seconds: that a job may take, unless its policy says so; None is EXECUTION_TIMEOUT_S.
        """
        self._engines = engines
        self._settings = settings
        self._budget = Budget.of(settings)
        self._report = report
        self._limit = limit
        self._running = 0
        self._streams: set[Stream[Piece[Any]]] = set()
        # Those of them that need the engine.
        self._in_engine: set[Stream[Piece[Any]]] = set()
        slots = engines.base.slots
        self._most_inside = most_inside(jobs_at_once(settings.max_concurrency, slots), slots)
        self._seconds = settings.execution_timeout_s if seconds is None else seconds
        others = partial(len, self._in_engine)
        self._resources = Resources(engines, settings, others, start, dialects.OUTPUTS)

    @property
    def running(self) -> int:
        """How many jobs are being answered."""
        return self._running

    @property
    def ready(self) -> bool:
        """Whether the model's engine can answer; False while it is started again."""
        return not self._engines.base.dead

    @property
    def full(self) -> bool:
        """Whether a job that needs the engine would be refused."""
        return len(self._in_engine) >= self._most_inside

    @property
    def links(self) -> Links:
        """Signed addresses of files, for a server that answers them."""
        return self._resources.links

    def unfinished(self) -> list[LongWork]:
        """Return the work on the volume that jobs have to go on with; for threads."""
        return self._resources.unfinished()

    def leave(self) -> None:
        """Begin no further part of long work: another worker goes on."""
        self._resources.close()

    def end_all(self, error: WorkerError) -> None:
        """Fail every running answer with this error, after what the engine has produced of it."""
        for stream in self._streams:
            stream.end(error)

    # An async generator function: the SDK recognises nothing else as a stream.
    async def handle(
        self, job: dict[str, Any], record: JobRecord | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield the answer to a job of the platform: ``{"id": ..., "input": {...}}``.

        Nothing is raised: a job fails by a last yield of ``{"error": "<JSON text>"}``.

        Args:
            job: as the platform handed it over.
            record: filled in for a caller who counts the chunks and writes it; None: the job's
                line in the log is written here.
        """
        writes = record is None
        record = record or JobRecord.of(job)
        with self._counted(record, writes=writes):
            async with contextlib.aclosing(self._answered(job, record)) as yields:
                async for chunk in yields:
                    if writes:
                        record.chunks += 1
                    yield chunk

    @contextlib.contextmanager
    def _counted(self, record: JobRecord, *, writes: bool) -> Iterator[None]:
        """Count a job as running until the end of this block, or of the job's task."""
        ended = contextlib.ExitStack()
        if writes:
            ended.callback(record.write)
        ended.callback(self._count, -1)
        self._count(1)
        # A job that is cancelled runs no more code that could set it.
        record.status = UNANSWERED
        # Closed twice if a cancelled job's generator is closed later; a stack has no second end.
        with at_end_of_task(ended.close):
            yield

    def _count(self, change: int) -> None:
        self._running += change

    async def _answered(self, job: dict[str, Any], record: JobRecord) -> AsyncGenerator[Any, None]:
        request_id = str(job.get("id", ""))
        render_error = None
        error_keys: Mapping[str, Any] = {}
        try:
            # The SDK would send the traceback of a defect to the caller.
            with defects_hidden(request_id):
                parsed = await self._parsed(job.get("input"))
                record.route, record.streamed = dialects.described(parsed)
                seconds = record.limit_s or self._seconds
                reply = dialects.answer(parsed, request_id, self._resources, seconds)
                error_keys, record.usage = reply.error_keys, reply.usage
                async with (
                    reporting(job, reply.progress, self._report),
                    contextlib.aclosing(self._yields(parsed, reply, record)) as yields,
                ):
                    async for chunk in yields:
                        yield chunk
                        render_error = reply.render_error
        except WorkerError as error:
            record.status = error.status
            body = {**error_keys, **error.body(request_id)}
            # Clients of a stream that has begun look for an event; the platform, at the job.
            if render_error:
                yield render_error(body)
            yield _failure(body)

    async def _parsed(self, payload: Any) -> AnyJob:
        """Validate an input: a list, which may take half a second, while others are answered.

        Raises:
            WorkerError: it is refused; or it is the error for which it could not be read.
        """
        if isinstance(payload, WorkerError):
            raise payload
        if isinstance(payload, dict) and payload.keys() & LONG:
            return await asyncio.to_thread(dialects.parse_input, payload, self._budget)
        return dialects.parse_input(payload, self._budget)

    async def _yields(
        self, job: Job, reply: Answer[Any], record: JobRecord
    ) -> AsyncGenerator[Any, None]:
        with self._opened(reply, record) as read:
            if not reply.stream:
                chunk = await self._whole(read, reply)
                # Not every caller asks for a second yield.
                record.status = HTTPStatus.OK
                yield chunk
                return
            chunker: Chunker[Any] = Chunker(reply.policy or self._policy(job))
            wait: float | None = None
            failure: WorkerError | None = None
            try:
                while (pieces := await read(wait, chunker.missing)) is not None:
                    chunker.add(self._within_limit(pieces))
                    if chunk := chunker.take(time.monotonic()):
                        yield reply.render(chunk)
                    wait = chunker.wait(time.monotonic())
            except WorkerError as error:
                failure = error
            # What came before a failure is still sent.
            while chunk := chunker.flush(time.monotonic()):
                yield reply.render(chunk)
            if failure is not None:
                try:
                    raise failure
                finally:
                    # Its traceback would refer to this frame, which refers to it: all that the job
                    # held would stay until the next full garbage collection.
                    del failure
            record.status = HTTPStatus.OK

    @contextlib.contextmanager
    def _opened(self, reply: Answer[Any], record: JobRecord) -> Iterator[Read]:
        """Start an answer; cancel it at the end of this block, or of the job's task.

        Raises:
            EngineBusy: it needs the engine, and the worker is full.
        """

        def source() -> AsyncGenerator[Piece[Any], None]:
            record.begun_at = time.monotonic()
            return reply.pieces()

        async def read(patience: float | None = None, enough: int = 1) -> list[Piece[Any]] | None:
            pieces = await stream.read(patience, enough)
            if pieces and record.first_at is None:
                record.first_at = pieces[0].born
            return pieces

        def close() -> None:
            stream.cancel()
            self._streams.discard(stream)
            self._in_engine.discard(stream)

        if not reply.by_worker and self.full:
            raise EngineBusy
        stream = Stream(source, self._engines.base.loop)
        self._streams.add(stream)
        if not reply.by_worker:
            self._in_engine.add(stream)
        with at_end_of_task(close):
            yield read

    async def _whole(self, read: Read, reply: Answer[Any]) -> Any:
        """Return the one yield of an answer that is not streamed."""
        values: list[Any] = []
        while (pieces := await read()) is not None:
            values += [piece.value for piece in pieces]
        chunk = reply.render(values)
        if (size := json_size(chunk)) > self._limit:
            raise AnswerTooLarge(
                f"The answer has {size:,} bytes and one yield holds {self._limit:,}: "
                "ask for less: a stream, fewer tokens, fewer inputs, or base64 embeddings."
            )
        return chunk

    def _within_limit(self, pieces: list[Piece[Any]]) -> list[Piece[Any]]:
        if largest := max((piece.size for piece in pieces if piece.size > self._limit), default=0):
            raise AnswerTooLarge(
                f"One event of the stream has {largest:,} bytes and one yield holds "
                f"{self._limit:,}: ask for fewer log probabilities or a shorter answer."
            )
        return pieces

    def _policy(self, job: Job) -> ChunkPolicy:
        settings = self._settings
        delay_ms = job.max_batch_delay_ms
        return ChunkPolicy(
            largest=job.max_batch_size or settings.default_batch_size,
            smallest=job.min_batch_size or settings.default_min_batch_size,
            growth=job.batch_size_growth_factor or settings.default_batch_size_growth_factor,
            max_delay=(settings.default_batch_max_delay_ms if delay_ms is None else delay_ms)
            / 1000,
        )


def _failure(body: dict[str, Any]) -> dict[str, str]:
    """Return the yield that fails a job; the SDK would turn a dict in it into Python's repr."""
    return {"error": json.dumps(body, ensure_ascii=False)}
