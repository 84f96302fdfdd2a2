"""Webhooks: the status object of a job that ended, posted to the URL that its caller named."""

import asyncio
import logging

import aiohttp
from aiohttp_retry import ListRetry, RetryClient

from emulator.limits import WEBHOOK_ATTEMPTS
from emulator.state.job import Job

log = logging.getLogger("emulator")


class Webhooks:
    """Posts in the background; an answer other than 200 is tried again after `retry_s` seconds."""

    def __init__(self, retry_s: float) -> None:
        self._retry = ListRetry(
            [retry_s] * WEBHOOK_ATTEMPTS,
            exceptions={aiohttp.ClientError, TimeoutError},
            evaluate_response_callback=_is_acknowledged,
        )
        self._posts: set[asyncio.Task[None]] = set()
        self._closed = False

    def notify(self, job: Job) -> None:
        """Start the post for a job that ended, if it has a webhook."""
        if job.webhook is not None and not self._closed:
            post = asyncio.create_task(self._post(job, job.webhook))
            self._posts.add(post)
            post.add_done_callback(self._posts.discard)

    async def close(self) -> None:
        """Cancel the posts under way, and start no more."""
        self._closed = True
        for post in self._posts:
            post.cancel()
        await asyncio.gather(*self._posts, return_exceptions=True)

    async def _post(self, job: Job, url: str) -> None:
        try:
            # One session per post: webhooks are few, and each may go to another host.
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
