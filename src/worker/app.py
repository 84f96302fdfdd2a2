"""The worker: runs jobs and yields their output. All errors of jobs are rendered here."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any

from worker import dialects
from worker.bridge import Stream, call_at_task_end
from worker.chunking import (
    RESULT_LIMIT_BYTES,
    YIELD_LIMIT_BYTES,
    Chunker,
    Piece,
    Schedule,
    current_schedule,
)
from worker.engine import Engines
from worker.errors import AnswerTooLarge, EngineBusy, WorkerError, hide_defects
from worker.files import Files
from worker.job import AnyJob, Job, LongJob, PromptListJob
from worker.long_work.job_list import OrphanedWork
from worker.long_work.records import WorkReference
from worker.process.concurrency import max_jobs_from_queue, max_jobs_in_worker
from worker.progress import SendProgress, report_progress
from worker.record import UNANSWERED, JobRecord, engine_use
from worker.routes.answer import Answer, Slot, chunk_policy, json_size
from worker.routes.kinds import KINDS
from worker.routes.resources import Resources, StartWork
from worker.settings import Settings
from worker.volume.links import SignedLinks

# Input keys of jobs whose lists may take long to validate.
LONG_INPUT_KEYS = PromptListJob.marker_keys | KINDS.keys()
# Maximum answers at a time that need no engine. Over HTTP, a client may leave them unread.
MAX_OWN_ANSWERS = 256
# Maximum files at a time whose contents are in memory, until their jobs have delivered them.
MAX_FILES_IN_MEMORY = 4
# Signature of a function that waits for more pieces, as ``Stream.read`` does.
ReadPieces = Callable[..., Awaitable[list[Piece[Any]] | None]]


class Worker:
    """Runs any number of jobs concurrently on its engines, on the event loops of the callers."""

    def __init__(
        self,
        engines: Engines,
        settings: Settings,
        report: SendProgress | None = None,
        yield_limit: float = YIELD_LIMIT_BYTES,  # bytes of JSON
        start_work: StartWork | None = None,  # None: callers must send the job that runs long work
        # For jobs whose policy sets no limit; None means EXECUTION_TIMEOUT_S.
        timeout_s: float | None = None,
    ) -> None:
        self._engines = engines
        self._settings = settings
        self._report = report
        self._yield_limit = yield_limit
        # The streams of all answers, by the slot that they need.
        self._streams: dict[Slot | None, set[Stream[Piece[Any]]]] = {
            slot: set() for slot in (*Slot, None)
        }
        self._file_slots = asyncio.Semaphore(MAX_FILES_IN_MEMORY)
        slots = engines.base_model.slots
        jobs = max_jobs_from_queue(settings.max_concurrency, slots)
        self._max_streams: dict[Slot | None, float] = {
            Slot.ENGINE: max_jobs_in_worker(jobs, slots),
            Slot.WORKER: MAX_OWN_ANSWERS,
            Slot.FILE: MAX_OWN_ANSWERS,
            None: math.inf,
        }
        self._timeout_s = settings.execution_timeout_s if timeout_s is None else timeout_s
        count_jobs = partial(len, self._streams[Slot.ENGINE])
        self._resources = Resources(engines, settings, count_jobs, start_work, dialects.OUTPUTS)

    @property
    def ready(self) -> bool:
        """Whether the model's engine can answer; False while the engine restarts."""
        return not self._engines.base_model.is_dead

    @property
    def is_full(self) -> bool:
        """Whether a job that needs the engine would be refused."""
        return len(self._streams[Slot.ENGINE]) >= self._max_streams[Slot.ENGINE]

    @property
    def files(self) -> Files:
        return self._resources.batches.files

    @property
    def signed_links(self) -> SignedLinks:
        return self._resources.links

    def list_unfinished_work(self) -> list[WorkReference]:
        """Return the unfinished work on the volume; blocks, so call it in a thread."""
        return self._resources.list_unfinished_work()

    def list_orphans(self) -> list[OrphanedWork]:
        """Return the unfinished work that no worker runs; blocks, so call it in a thread."""
        return self._resources.list_orphans()

    def takes_slot(self, job: dict[str, Any]) -> bool:
        """Return whether a job counts as one of the jobs that this worker runs concurrently.

        Jobs for long work don't: all except a few wait, and their lines have a window of their own.
        They do in a worker that only trains, which takes one job at a time.
        """
        payload = job.get("input")
        if not self._engines.has_engine or not isinstance(payload, dict):
            return True
        return all(payload.get(key) is None for key in KINDS)

    def stop_long_work(self) -> None:
        """Start no further part of long work; another worker continues it."""
        self._resources.stop_long_work()

    def fail_all_jobs(self, error: WorkerError) -> None:
        """Fail every running job with this error, after the output that the engine has produced."""
        for stream in chain.from_iterable(self._streams.values()):
            stream.fail(error)

    # This must be an async generator function: the SDK streams nothing else.
    async def handle(
        self, job: dict[str, Any], record: JobRecord | None = None
    ) -> AsyncGenerator[Any, None]:
        """Run a job of the platform, ``{"id": ..., "input": {...}}``, and yield its output.

        Raises nothing: the last yield of a failed job is ``{"error": "<JSON text>"}``.

        Args:
            job: The job as the platform sent it. The input of a job for long work is removed from
                it, once the input is parsed.
            record: Record that this method fills in for a caller that counts the chunks and logs
                the record itself; None to log the job's record here.
        """
        writes_record = record is None
        record = record or JobRecord.from_job(job)
        # This stays the status of a cancelled job, which runs no more code that could set it.
        record.status = UNANSWERED
        cleanup = contextlib.ExitStack()
        if writes_record:
            cleanup.callback(record.write_to_log)
        cleanup.callback(self._resources.receipts.store, record)
        file_slot = self._take_file_slot(until_task_ends=not writes_record)
        # A cancelled job's generator may be closed later, and then closes the stack a second time.
        with call_at_task_end(cleanup.close):
            async with contextlib.aclosing(self._run_job(job, record, file_slot)) as yields:
                async for chunk in yields:
                    if writes_record:
                        record.chunks += 1
                    yield chunk

    async def _run_job(
        self,
        job: dict[str, Any],
        record: JobRecord,
        file_slot: contextlib.AbstractAsyncContextManager[None],
    ) -> AsyncGenerator[Any, None]:
        """Parse a job, and yield its answer, or the answer's beginning and an error."""
        request_id = str(job.get("id", ""))
        render_error = None
        error_keys: Mapping[str, str] = {}
        try:
            # Otherwise the SDK would send the traceback of an unexpected exception to the caller.
            with hide_defects(request_id):
                # No variable here refers to the input: long work waits without it.
                parsed = await self._parse_input(job.get("input"))
                report = self._report
                if isinstance(parsed, LongJob):
                    # It may wait for hours, and the caller of this method refers to the job.
                    del job["input"]
                    if parsed.continue_options.background:
                        report = None
                description = dialects.describe_request(parsed)
                record.route, record.streamed = description.route, description.is_stream
                error_keys = description.error_keys
                record.user, record.labels = parsed.receipt_names
                seconds = record.limit_s or self._timeout_s
                reply = dialects.make_answer(parsed, request_id, self._resources, seconds)
                record.usage = reply.usage
                is_chunked = reply.stream or record.streamed or self._settings.stream_whole_answers
                record.is_whole = not is_chunked
                render = self._render_stream if reply.stream else self._render_whole
                async with (
                    file_slot if reply.slot is Slot.FILE else contextlib.nullcontext(),
                    report_progress(job, reply.progress, report),
                    contextlib.aclosing(render(parsed, reply, record)) as yields,
                ):
                    async for chunk in yields:
                        yield chunk
                        render_error = reply.render_error
        except WorkerError as error:
            record.status = error.status
            body = {**error_keys, **error.body(request_id)}
            # Clients read an error from the stream's last event, the platform from the last yield.
            if render_error:
                yield render_error(body)
            # As text: the SDK would send a dict as Python's repr.
            yield {"error": json.dumps(body, ensure_ascii=False)}

    async def _parse_input(self, payload: Any) -> AnyJob:
        """Validate an input; raise it if it is the error of reading the input."""
        if isinstance(payload, WorkerError):
            raise payload
        parse = partial(dialects.parse_input, payload, self._settings.max_input_mb)
        # Validating a long list may take half a second.
        return await asyncio.to_thread(parse) if _has_list(payload) else parse()

    async def _render_stream(
        self, job: Job, reply: Answer[Any], record: JobRecord
    ) -> AsyncGenerator[Any, None]:
        policy = reply.policy or chunk_policy(job, self._settings)
        chunker: Chunker[Any] = Chunker(policy)
        schedule = Schedule(policy, merges=reply.merges_outputs)
        with self._open_stream(reply, record, schedule) as read:
            try:
                while (pieces := await read(wait=not chunker.is_due)) is not None:
                    largest = max((piece.size for piece in pieces), default=0)
                    if largest > self._yield_limit:
                        raise AnswerTooLarge(
                            f"One event of the stream has {largest:,} bytes and a yield has at "
                            f"most {self._yield_limit:,}: ask for fewer log probabilities or a "
                            "shorter answer."
                        )
                    chunker.add(pieces)
                    if chunk := chunker.take_due_chunk():
                        yield reply.render(chunk)
            except WorkerError:
                # The error comes after everything that has arrived.
                for chunk in iter(chunker.take_chunk, []):
                    yield reply.render(chunk)
                raise
            last = [reply.render(chunk) for chunk in iter(chunker.take_chunk, [])]
            for rendered in self._add_receipt(last, job, reply, record):
                yield rendered
            record.status = HTTPStatus.OK

    async def _render_whole(
        self, job: Job, reply: Answer[Any], record: JobRecord
    ) -> AsyncGenerator[Any, None]:
        with self._open_stream(reply, record) as read:
            values: list[Any] = []
            while (pieces := await read()) is not None:
                values += [piece.value for piece in pieces]
            (chunk,) = self._add_receipt([reply.render(values)], job, reply, record)
            limit = self._yield_limit
            if record.is_whole:  # posted as a result only
                limit = max(limit, RESULT_LIMIT_BYTES)
            if (size := json_size(chunk)) > limit:
                raise AnswerTooLarge(
                    f"The answer has {size:,} bytes, and the platform takes at most {limit:,}: "
                    "ask for less: a stream, fewer tokens, fewer inputs, or base64 embeddings."
                )
        # The status is set before the yield, because some callers request only one yield. The slot
        # is free by then: a client over HTTP may read slowly.
        record.status = HTTPStatus.OK
        yield chunk

    def _add_receipt(
        self, yields: list[Any], job: Job, reply: Answer[Any], record: JobRecord
    ) -> list[Any]:
        """Return the last yields of a complete answer, with the job's receipt if requested."""
        if not job.receipt:
            return yields
        record.status = HTTPStatus.OK
        return reply.add_receipt(yields, self._resources.receipts.create(record))

    @contextlib.contextmanager
    def _open_stream(
        self, reply: Answer[Any], record: JobRecord, schedule: Schedule | None = None
    ) -> Iterator[ReadPieces]:
        """Yield a function that reads a response; cancel the response when the block or task ends.

        The engine's outputs are read by a schedule, or without one immediately.
        """

        def source() -> AsyncGenerator[Piece[Any], None]:
            record.submitted_at = time.monotonic()
            if reply.slot is Slot.ENGINE:
                self._resources.window.note_other_request()
            engine_use.set(record.use)
            if schedule is not None:
                current_schedule.set(schedule)
            return reply.pieces()

        async def read(*, wait: bool = True) -> list[Piece[Any]] | None:
            pieces = await stream.read(wait=wait)
            if pieces and record.first_piece_at is None:
                record.first_piece_at = pieces[0].produced_at
            return pieces

        def close() -> None:
            stream.cancel()
            streams.discard(stream)

        streams = self._streams[reply.slot]
        if len(streams) >= self._max_streams[reply.slot]:
            raise EngineBusy
        stream = Stream(source, self._engines.base_model.loop)
        streams.add(stream)
        with call_at_task_end(close):
            yield read

    @contextlib.asynccontextmanager
    async def _take_file_slot(self, *, until_task_ends: bool) -> AsyncGenerator[None, None]:
        """Wait until a response may have a file in memory, and count it for the block or task.

        The task of the platform's job ends after its result is delivered, which has the content.
        """
        await self._file_slots.acquire()
        task = asyncio.current_task() if until_task_ends else None
        try:
            yield
        finally:
            if task is None:
                self._file_slots.release()
            else:
                task.add_done_callback(lambda _: self._file_slots.release())


def _has_list(payload: Any) -> bool:
    """Return whether an input has a list of prompts, or long work with a list."""
    values = map(payload.get, LONG_INPUT_KEYS) if isinstance(payload, dict) else ()
    return any(
        isinstance(item, list)
        for value in values
        for item in (value.values() if isinstance(value, dict) else (value,))
    )
