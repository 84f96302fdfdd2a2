"""Sends the jobs that run long work to the worker's own endpoint."""

import logging
from dataclasses import dataclass

import aiohttp
from aiohttp_retry import ExponentialRetry, RetryClient
from pydantic import SecretStr

from worker.long_work.kinds import LongWork
from worker.settings import Settings

log = logging.getLogger(__name__)

# Seconds that such a job may take, and may wait: the work stops before, and goes on in another.
LONGEST_S = 24 * 3600
# Tries of a post, and seconds that are doubled before each further one.
TRIES = 5
PAUSE_S = 0.25
# Answers beside those of 5xx, and failures, that another try may help. A job that comes twice
# does no harm.
FOR_NOW = {408, 429}
FAILURES = {aiohttp.ClientError, TimeoutError}
PATIENCE = aiohttp.ClientTimeout(total=30)


@dataclass(frozen=True, slots=True)
class Sending:
    """Posts jobs to ``/run``.

    Args:
        url: of the endpoint.
        key: of the platform.
    """

    url: str
    key: SecretStr

    @classmethod
    def of(cls, settings: Settings) -> "Sending | None":
        """Return it, if the operator gave a key and the platform an endpoint."""
        if settings.batch_api_key is None or settings.runpod_endpoint_id is None:
            return None
        url = f"{settings.runpod_endpoint_base_url}/{settings.runpod_endpoint_id}/run"
        return cls(url, settings.batch_api_key)

    async def start(self, work: LongWork) -> bool:
        """Send the job that runs some work; return whether it was taken."""
        job = work.input(max_runtime_sec=LONGEST_S)
        policy = {"executionTimeout": LONGEST_S * 1000, "ttl": 2 * LONGEST_S * 1000}
        headers = {"Authorization": f"Bearer {self.key.get_secret_value()}"}
        retry = ExponentialRetry(
            TRIES, start_timeout=PAUSE_S, statuses=FOR_NOW, exceptions=FAILURES
        )
        try:
            async with RetryClient(
                retry_options=retry, timeout=PATIENCE, headers=headers
            ) as client:
                body = {"input": job, "policy": policy}
                async with client.post(self.url, json=body) as response:
                    response.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as error:
            # Not its repr, which has the headers.
            reason = str(error) or type(error).__name__
            log.warning("%s: the job that runs it could not be sent: %s", work, reason)
            return False
        return True
