"""A deployed endpoint under observation: its requests are sent once, and refusals are results."""

import json
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import httpx2
import openai

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.errors import DeployError
from llm_worker_client.jobs import ENDED_STATUSES

# Seconds to wait for a response; the gateway gives up after 100.
RESPONSE_TIMEOUT_S = 130.0
POLL_S = 0.5
# Choices of a long job, and maximum tokens of each: the job runs longer than an observation, also
# on a fast GPU.
_LONG_CHOICES, _LONG_TOKENS = 64, 30_000
# Context in tokens, if the list of models doesn't contain it.
_MIN_CONTEXT = 2048

Json = dict[str, Any]


class UnexpectedResponse(Exception):
    """The platform refuses a request whose success an observation needs."""


class EndpointTarget:
    """The main endpoint of a run; ``scaling`` has ``workers`` and ``scaling`` of its request."""

    def __init__(self, api: Api, key: str, endpoint_id: str, model: str, scaling: Json) -> None:
        self.api, self.id, self.model = api, endpoint_id, model
        self._scaling = scaling
        self._is_scaled_to_zero = False
        self._context: int | None = None
        url = api.openai_url(endpoint_id)
        self.http = httpx2.Client(
            base_url=url.removesuffix("/openai/v1"),
            headers={"Authorization": f"Bearer {key}"},
            timeout=RESPONSE_TIMEOUT_S,
        )
        self.openai = openai.OpenAI(
            base_url=url, api_key=key, max_retries=0, timeout=RESPONSE_TIMEOUT_S
        )

    def close(self) -> None:
        self.http.close()
        self.openai.close()

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send a request and return the JSON of the response, or raise ``UnexpectedResponse``."""
        response = self.http.request(method, path, json=body)
        if not response.is_success:
            raise UnexpectedResponse(f"{method} {path}: {describe_response(response)}")
        content: Json = response.json()
        return content

    def submit(self, job_input: Json, **fields: Any) -> str:
        return str(self.call("POST", "/run", {"input": job_input, **fields})["id"])

    def run(self, job_input: Json, limit_s: float = 120) -> Json:
        """Run a job to its end and return the platform's report."""
        return self.wait_for(self.submit(job_input), ENDED_STATUSES, limit_s)

    def wait_for(self, job_id: str, statuses: Collection[str], limit_s: float) -> Json:
        """Wait until a job has one of these statuses, or the time is over; return its report."""
        job: Json = {}

        def has_status() -> bool:
            job.update(self.api.get_job(self.id, job_id))
            return job["status"] in statuses

        wait_until(has_status, limit_s)
        return job

    def knows_job(self, job_id: str) -> bool:
        return self.http.get(f"/status/{job_id}").status_code == 200

    def cancel(self, job_id: str) -> None:
        with suppress(DeployError):
            self.api.cancel_job(self.id, job_id)

    def list_workers(self) -> list[Json]:
        return list(self.api.get_workers(self.id)["workers"])

    def remove_workers(self, limit_s: float = 180) -> float:
        """Remove all workers, if there are any; return the seconds until the last is gone."""
        start = time.monotonic()
        if not self._is_scaled_to_zero:
            self.api.update_endpoint(
                self.id, {"workers": self._scaling["workers"] | {"max": 0}}, can_retry=True
            )
            self._is_scaled_to_zero = True
        wait_until(lambda: not self.list_workers(), limit_s)
        return round(time.monotonic() - start, 1)

    def restore_workers(self) -> None:
        """Allow the endpoint's workers again, if they were removed."""
        if self._is_scaled_to_zero:
            self.api.update_endpoint(self.id, self._scaling, can_retry=True)
            self._is_scaled_to_zero = False

    def set_idle_timeout(self, seconds: int | None) -> None:
        """Change the seconds after which idle workers end; None for the endpoint's own."""
        body = dict(self._scaling)
        if seconds is not None:
            body["workers"] = body["workers"] | {"idleTimeout": seconds}
        self.api.update_endpoint(self.id, body, can_retry=True)

    def long_input(self) -> Json:
        """Return the input of a raw job that streams, and runs longer than an observation."""
        if self._context is None:
            model = self.openai.models.list().data[0]
            self._context = int(getattr(model, "max_model_len", None) or _MIN_CONTEXT)
        tokens = min(self._context - 100, _LONG_TOKENS)
        params = {"max_tokens": tokens, "ignore_eos": True, "n": _LONG_CHOICES}
        return {"prompt": "Once upon a time", "sampling_params": params, "stream": True}

    def short_input(self, tokens: int = 8, **fields: Any) -> Json:
        """Return the input of a raw job with this number of tokens."""
        params = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        return {"prompt": "Once upon a time", "sampling_params": params, **fields}

    def chat_body(self, **fields: Any) -> Json:
        """Return the body of a short chat that ends after 8 tokens."""
        messages = [{"role": "user", "content": "Hello!"}]
        body = {"model": self.model, "messages": messages, "max_tokens": 8}
        return body | {"ignore_eos": True, "temperature": 0, **fields}


def wait_until(condition: Callable[[], object], limit_s: float) -> bool:
    """Poll until a condition holds; return False if the time is over first."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def describe_response(response: httpx2.Response) -> str:
    """Return the status and the media type of a response, and the source of an error in it."""
    kind = response.headers.get("content-type", "no type").partition(";")[0]
    text = f"{response.status_code} {kind}"
    if response.status_code < 400 and b'"error"' not in response.content:
        return text
    try:
        error = response.json().get("error")
    except (ValueError, AttributeError):
        return text
    return f"{text}, {describe_error(error)}"


def describe_error(error: Any) -> str:
    """Return the source of an error: only the worker's errors contain ``retryable``."""
    if isinstance(error, str):
        with suppress(ValueError):
            error = json.loads(error)
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if isinstance(error, dict) and "retryable" in error:
        retryable = ", retryable" if error["retryable"] else ""
        return f"the worker's error {error.get('code')}{retryable}"
    return "the platform's error" if error else "no error"
