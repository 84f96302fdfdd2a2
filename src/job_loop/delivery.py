"""Delivers the answer of one job to the platform: its chunks in order, then its result."""

import asyncio
import json
import time
from typing import Any

from job_loop.connections import PostRequest
from job_loop.wire import PlatformClient, PostFailed, PostNotDelivered, PostUncertain, backoff_s
from worker.chunking import RESULT_LIMIT_BYTES
from worker.errors import AnswerTooLarge, BrokenStream
from worker.record import JobRecord, time_delivery

# Seconds from the first failure to the last retry of a post, if the job has no time limit.
RETRY_S = 600.0

# The platform rejects NaN, so the response would be lost. A ValueError fails the job instead.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class Delivery:
    """Posts a job's yields, then its result or error; counts yields and retries in ``record``."""

    def __init__(self, client: PlatformClient, record: JobRecord) -> None:
        self._client = client
        self._record = record
        self._encoded_yields: list[bytes] = []
        self._result_bytes = 0
        self._deadline = None if record.limit_s is None else record.received_at + record.limit_s

    async def add(self, value: Any) -> None:
        """Store one yield of the job for the result; post it as a chunk unless it is the only one.

        Raises:
            AnswerTooLarge: If the platform would drop a result with this many bytes.
            BrokenStream: If the caller streams and the yield may be missing from the stream.
            ValueError: If the yield contains NaN or infinity.
        """
        encoded = _encode(value).encode(errors="replace")
        self._encoded_yields.append(encoded)
        self._result_bytes += len(encoded) + len(", ")
        self._record.chunks += 1
        if self._result_bytes > RESULT_LIMIT_BYTES:
            raise AnswerTooLarge(
                f"The answer has more than the {RESULT_LIMIT_BYTES:,} bytes that the platform "
                "stores: ask for less, or for fewer prompts in one job."
            )
        if self._record.is_whole:
            return
        try:
            with time_delivery():
                await self._post(self._client.posts.chunk, b'{"output": %b}' % encoded)
        except PostNotDelivered as error:
            # Callers that don't stream read the whole response from the result.
            if self._record.streamed:
                raise BrokenStream from error

    async def post_result(self) -> None:
        await self._post_final(b'{"output": [%b]}' % b", ".join(self._encoded_yields))

    async def post_error(self, error: str) -> None:
        """Post an error, usually a JSON string, as the job's result instead of the yields."""
        await self._post_final(b'{"error": %b}' % _encode(error).encode(errors="replace"))

    async def _post_final(self, body: bytes) -> None:
        posts = self._client.posts
        post = posts.result if self._record.is_whole else posts.result_after_chunks
        with time_delivery():
            await self._post(post, body, is_repeatable=True)

    async def _post(self, post: PostRequest, body: bytes, *, is_repeatable: bool = False) -> None:
        """Retry a post that may have arrived only if ``is_repeatable``."""
        failures, give_up_at = 0, self._deadline
        while True:
            try:
                await self._client.post(post, self._record.id, body)
            except PostFailed as failed:
                last_error: PostNotDelivered = failed
            except PostUncertain as failed:
                if not is_repeatable:
                    raise
                last_error = failed
            else:
                return
            failures += 1
            pause, now = backoff_s(failures), time.monotonic()
            give_up_at = give_up_at or now + RETRY_S
            if now + pause > give_up_at:
                raise last_error
            self._record.count_retried_post()
            await asyncio.sleep(pause)
