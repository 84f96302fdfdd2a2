"""An endpoint for `LLM`, whose workers echo."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.scripted_endpoint import ACCOUNT, Answer, Failed

from emulator import Emulator
from llm_worker_client import LLM
from llm_worker_client.llm import RequestOutput

Call = Callable[..., Awaitable[list[RequestOutput]]]
# It may be tried again at once.
RETRYABLE = {"message": "the engine is full", "code": 503, "retryable": True, "retry_after": 0}


@dataclass
class Echo:
    """A worker's answers to lists, without a model: every text is echoed.

    Attributes:
        given: what jobs held.
        errors: of items, by what they ask; one that is retryable holds once.
        failures: the next jobs' errors, one each.
        most: results that the platform keeps of a job.
    """

    given: list[Any] = field(default_factory=list)
    errors: dict[Any, dict[str, Any]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    most: int = 10_000

    def answer(self, given: Any) -> list[Any]:
        self.given.append(given)
        if self.failures:
            raise Failed(json.dumps({"error": self.failures.pop(0)}))
        asked = given.get("prompts") or given["messages_list"]
        if len(asked) > self.most:
            return []
        results = [self._result(one) for one in asked]
        # As a worker splits what one yield has no room for.
        return [{"outputs": results[:2]}, {"index": 2, "outputs": results[2:]}][: len(asked)]

    def _result(self, asked: Any) -> dict[str, Any]:
        error = self.errors.get(str(asked))
        if error is None:
            choice = {"tokens": [f"{asked}!"], "token_ids": [7], "finish_reason": "stop"}
            usage = {"input": 1, "output": 1}
            return {"choices": [choice], "usage": usage, "request_id": "r"}
        if error["retryable"]:
            del self.errors[str(asked)]
        return {"error": error}

    @property
    def sizes(self) -> list[int]:
        """How many items jobs held."""
        return [len(given.get("prompts") or given["messages_list"]) for given in self.given]


@pytest.fixture
def echo_llm() -> Echo:
    return Echo()


@pytest.fixture
def answer(echo_llm: Echo) -> Answer:
    return echo_llm.answer


@pytest.fixture
def llm(emulator: Emulator) -> Iterator[LLM]:
    with LLM("local", api_key=ACCOUNT, base_url=emulator.api_url) as made:
        yield made


@pytest.fixture
def ask_llm(llm: LLM) -> Call:
    """Return ``LLM.generate``, for tests on the loop of their endpoint."""

    async def call(
        prompts: Any = None, sampling_params: Any = None, **named: Any
    ) -> list[RequestOutput]:
        named = {**named, "use_tqdm": False}
        return await asyncio.to_thread(llm.generate, prompts, sampling_params, **named)

    return call
