"""An emulated endpoint for `LLM` whose workers echo prompts."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.scripted_endpoint import ACCOUNT, JobFailure, OutputsFunction

from emulator import Emulator
from llm_worker_client import LLM
from llm_worker_client.llm import RequestOutput

Call = Callable[..., Awaitable[list[RequestOutput]]]
# An error that allows an immediate retry.
RETRYABLE = {"message": "the engine is full", "code": 503, "retryable": True, "retry_after": 0}


@dataclass
class Echo:
    """A worker that echoes every prompt of a list, without a model.

    Attributes:
        inputs: Inputs of all jobs so far.
        errors: Errors by prompt; a retryable error occurs once.
        failures: Errors of the next jobs, one per job.
        max_results: Number of results of a job that the platform can store.
    """

    inputs: list[Any] = field(default_factory=list)
    errors: dict[Any, dict[str, Any]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    max_results: int = 10_000

    def answer(self, job_input: Any) -> list[Any]:
        self.inputs.append(job_input)
        if self.failures:
            raise JobFailure(json.dumps({"error": self.failures.pop(0)}))
        prompts = job_input.get("prompts") or job_input["messages_list"]
        if len(prompts) > self.max_results:
            return []
        results = [self._result(prompt) for prompt in prompts]
        # Like a worker that splits results too large for one yield.
        return [{"outputs": results[:2]}, {"index": 2, "outputs": results[2:]}][: len(prompts)]

    def _result(self, prompt: Any) -> dict[str, Any]:
        error = self.errors.get(str(prompt))
        if error is None:
            choice = {"tokens": [f"{prompt}!"], "token_ids": [7], "finish_reason": "stop"}
            usage = {"input": 1, "output": 1}
            return {"choices": [choice], "usage": usage, "request_id": "r"}
        if error["retryable"]:
            del self.errors[str(prompt)]
        return {"error": error}

    @property
    def sizes(self) -> list[int]:
        """Number of prompts in each job."""
        return [len(job.get("prompts") or job["messages_list"]) for job in self.inputs]


@pytest.fixture
def echo_llm() -> Echo:
    return Echo()


@pytest.fixture
def answer(echo_llm: Echo) -> OutputsFunction:
    return echo_llm.answer


@pytest.fixture
def llm(emulator: Emulator) -> Iterator[LLM]:
    with LLM("local", api_key=ACCOUNT, base_url=emulator.api_url) as client:
        yield client


@pytest.fixture
def ask_llm(llm: LLM) -> Call:
    """Return ``LLM.generate`` as a coroutine function, since tests share the endpoint's loop."""

    async def call(
        prompts: Any = None, sampling_params: Any = None, **options: Any
    ) -> list[RequestOutput]:
        options = {**options, "use_tqdm": False}
        return await asyncio.to_thread(llm.generate, prompts, sampling_params, **options)

    return call
