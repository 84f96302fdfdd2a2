"""Webhooks: a job's end, told to the URL that its caller named."""

import asyncio
import logging

import aiohttp
from aiohttp_retry import ListRetry, RetryClient

from emulator.jobs import Job
from emulator.limits import WEBHOOK_ATTEMPTS

log = logging.getLogger("emulator")


class Webhooks:
    """Posts the status object of each job that asked for it."""

    def __init__(self, retry_s: float) -> None:
        self._retry = ListRetry(
            [retry_s] * WEBHOOK_ATTEMPTS,
            exceptions={aiohttp.ClientError, TimeoutError},
            evaluate_response_callback=_is_acknowledged,
        )
        self._posts: set[asyncio.Task[None]] = set()
        self._closed = False

    def tell(self, job: Job) -> None:
        if job.webhook is not None and not self._closed:
            post = asyncio.create_task(self._post(job, job.webhook))
            self._posts.add(post)
            post.add_done_callback(self._posts.discard)

    async def close(self) -> None:
        """Give up what has not been delivered, and take nothing more."""
        self._closed = True
        for post in self._posts:
            post.cancel()
        await asyncio.gather(*self._posts, return_exceptions=True)

    async def _post(self, job: Job, url: str) -> None:
        try:
            # A session of its own: webhooks are few, and each may go somewhere else.
            async with (
                RetryClient(retry_options=self._retry) as client,
                client.post(url, json=job.report(), allow_redirects=False) as answer,
            ):
                status = str(answer.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            status = str(error) or type(error).__name__
        if status != "200":
            log.warning("the webhook of job %s was not acknowledged: %s", job.id, status)


async def _is_acknowledged(answer: aiohttp.ClientResponse) -> bool:
    return answer.status == 200
