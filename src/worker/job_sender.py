"""Sends jobs that run long work to the worker's own endpoint."""

import logging
from dataclasses import dataclass

import aiohttp
from aiohttp_retry import ExponentialRetry, RetryClient
from pydantic import SecretStr

from worker.long_work.records import WorkReference
from worker.settings import Settings

log = logging.getLogger(__name__)

# Seconds that a job may run, and that it may wait before. Longer work continues in another job.
MAX_RUNTIME_S = 24 * 3600
# Number of attempts to post a job, and seconds before the second one; each further pause doubles.
ATTEMPTS = 5
FIRST_PAUSE_S = 0.25
# Errors and statuses, in addition to 5xx, after which a post is retried. A second job does no harm.
RETRIED_STATUSES = {408, 429}
RETRIED_ERRORS = {aiohttp.ClientError, TimeoutError}
TIMEOUT = aiohttp.ClientTimeout(total=30)
FIRST_REDIRECT = 300
REDIRECT = "a redirect, which is not followed"


@dataclass(frozen=True, slots=True)
class JobSender:
    """Posts jobs to the endpoint's ``/run`` route, with an API key of the platform."""

    url: str
    key: SecretStr

    @classmethod
    def from_settings(cls, settings: Settings) -> "JobSender | None":
        """Return a sender; None without a key (BATCH_API_KEY) or outside an endpoint."""
        if settings.batch_api_key is None or settings.runpod_endpoint_id is None:
            return None
        url = f"{settings.runpod_endpoint_base_url}/{settings.runpod_endpoint_id}/run"
        return cls(url, settings.batch_api_key)

    async def send_job(self, work: WorkReference) -> bool:
        """Send the job that runs long work; return whether the platform accepted it."""
        job = work.job_input(max_runtime_sec=MAX_RUNTIME_S)
        policy = {"executionTimeout": MAX_RUNTIME_S * 1000, "ttl": 2 * MAX_RUNTIME_S * 1000}
        headers = {"Authorization": f"Bearer {self.key.get_secret_value()}"}
        retry = ExponentialRetry(
            ATTEMPTS,
            start_timeout=FIRST_PAUSE_S,
            statuses=RETRIED_STATUSES,
            exceptions=RETRIED_ERRORS,
        )
        try:
            async with RetryClient(retry_options=retry, timeout=TIMEOUT, headers=headers) as client:
                body = {"input": job, "policy": policy}
                # A redirect could name any host, which would get the job.
                async with client.post(self.url, json=body, allow_redirects=False) as response:
                    response.raise_for_status()
                    if response.status >= FIRST_REDIRECT:
                        raise aiohttp.ClientResponseError(
                            response.request_info, (), status=response.status, message=REDIRECT
                        )
        except (aiohttp.ClientError, TimeoutError) as error:
            # The error's repr would contain the headers, and so the key.
            reason = str(error) or type(error).__name__
            log.warning("%s: the job that runs it could not be sent: %s", work, reason)
            return False
        return True
