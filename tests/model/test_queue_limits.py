"""A request beyond vLLM's own limits of its queue is refused in a way that a caller can retry."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from support.engine.scripted import failure

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

Ask = Callable[..., Awaitable[list[Any]]]

SHORT: dict[str, Any] = {"max_tokens": 1}
MESSAGES = [{"role": "user", "content": "Hi"}]
JOBS: list[dict[str, Any]] = [
    {"prompt": "Hi", "sampling_params": SHORT},
    {"messages": MESSAGES, "sampling_params": {**SHORT, "n": 2}},
    {"openai_route": "/v1/chat/completions", "openai_input": {"messages": MESSAGES, **SHORT}},
    {"openai_route": "/v1/completions", "openai_input": {"prompt": "Hi", **SHORT}},
]
LIMITS = ("max_num_queued_reqs", "max_num_queued_tokens")


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "payload",
    JOBS,
    ids=["raw", "raw-choices", "chat", "completions"],
)
async def test_a_refused_request_fails_its_job_as_retryable(
    engine: "InProcessEngine",
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    payload: dict[str, Any],
    stream: bool,
    limit: str,
) -> None:
    if "openai_input" in payload:
        payload = {**payload, "openai_input": {**payload["openai_input"], "stream": stream}}
    else:
        payload = {**payload, "stream": stream}
    with monkeypatch.context() as full:
        full.setattr(engine._client.vllm_config.scheduler_config, limit, 0)
        error = failure(await ask(**payload))
    assert (error["code"], error["retryable"]) == (503, True)
    assert "try again" in error["message"]
    assert "error" not in (await ask(**payload))[-1], "there is room again"


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_item_of_a_list_has_an_error_of_its_own(
    engine: "InProcessEngine",
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
    limit: str,
) -> None:
    monkeypatch.setattr(engine._client.vllm_config.scheduler_config, limit, 0)
    yields = await ask(prompts=["Hi", "Hello"], sampling_params=SHORT, stream=stream)
    results = [chunk["result"] for chunk in yields] if stream else yields[0]["outputs"]
    errors = [result["error"] for result in results]
    assert [(error["code"], error["retryable"]) for error in errors] == [(503, True)] * 2
