"""The worker: a job in, the yields of its answer out. Errors are rendered here and only here."""

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from worker.bridge import Stream, at_end_of_task
from worker.chunking import YIELD_LIMIT_BYTES, Chunker, ChunkPolicy, Piece
from worker.engine import Engines
from worker.errors import AnswerTooLarge, WorkerError, defects_hidden
from worker.job import Job, parse_input
from worker.progress import Report, reporting
from worker.routes import answer
from worker.routes.answer import Answer, json_size
from worker.settings import Settings


class Worker:
    """Answers jobs with its engines: any number at once, on the event loops of the callers."""

    def __init__(
        self,
        engines: Engines,
        settings: Settings,
        report: Report | None = None,
        limit: float = YIELD_LIMIT_BYTES,
    ) -> None:
        """Make a worker.

        Args:
            engines: loaded, on a loop of their own.
            settings: the worker's.
            report: sends progress of long lists to the platform; None: nobody wants it.
            limit: the most that a yield may have, in bytes as JSON.
        """
        self._engines = engines
        self._settings = settings
        self._report = report
        self._limit = limit

    # An async generator function: the SDK recognises nothing else as a stream.
    async def handle(self, job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield the answer to a job of the platform: ``{"id": ..., "input": {...}}``.

        Nothing is raised: a job fails by a last yield of ``{"error": "<JSON text>"}``.
        """
        request_id = str(job.get("id", ""))
        render_error = None
        error_keys: Mapping[str, Any] = {}
        try:
            # The SDK would send the traceback of a defect to the caller.
            with defects_hidden(request_id):
                parsed = parse_input(job.get("input"))
                reply = answer(parsed, request_id, self._engines, self._settings)
                error_keys = reply.error_keys
                async with (
                    reporting(job, reply.progress, self._report),
                    contextlib.aclosing(self._yields(parsed, reply)) as yields,
                ):
                    async for chunk in yields:
                        yield chunk
                        render_error = reply.render_error
        except WorkerError as error:
            body = {**error_keys, **error.body(request_id)}
            yield render_error(body) if render_error else _failure(body)

    async def _yields(self, job: Job, reply: Answer[Any]) -> AsyncGenerator[Any, None]:
        with self._opened(reply) as stream:
            if not reply.stream:
                yield await self._whole(stream, reply)
                return
            chunker: Chunker[Any] = Chunker(reply.policy or self._policy(job))
            wait: float | None = None
            failure: WorkerError | None = None
            try:
                while (pieces := await stream.read(wait, chunker.missing)) is not None:
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
                raise failure

    @contextlib.contextmanager
    def _opened(self, reply: Answer[Any]) -> Iterator[Stream[Piece[Any]]]:
        """Start an answer; cancel it at the end of this block, or of the job's task."""
        stream = Stream(reply.pieces, self._engines.loop)
        with at_end_of_task(stream.cancel):
            yield stream

    async def _whole(self, stream: Stream[Piece[Any]], reply: Answer[Any]) -> Any:
        """Return the one yield of an answer that is not streamed."""
        values: list[Any] = []
        while (pieces := await stream.read()) is not None:
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
