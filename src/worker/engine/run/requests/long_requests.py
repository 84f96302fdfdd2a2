"""Queue for long requests and items of lists: other requests wait behind only a few of them.

vLLM computes prompts in the order of their arrival. A list of a thousand prompts would delay every
request that arrives later, until the engine has computed the whole list.

vLLM's priority scheduling is not enough. It lets short prompts pass long prompts that wait, but
running requests keep their slots, so a short prompt waits for a free slot for seconds, not just for
one step. Also, any caller could then set a priority for a request.

Requests whose ``repetition_detection`` compares many tokens in each step have a queue of their own.
"""

import asyncio
from dataclasses import asdict
from typing import Any

from worker.engine.run.requests.texts import is_long
from worker.engine.seam.patches import ADD_REQUEST
from worker.engine.seam.protocols import Client, EngineInput, RequestState
from worker.limits.work import (
    MAX_CONCURRENT_COMPARISONS,
    MAX_LIST_LOGPROBS_PER_STEP,
    MIN_COSTLY_COMPARISONS,
    comparisons_per_step,
)

# Number of engine steps that the uncomputed prompts of long requests may fill, so that the current
# and the next step have enough work.
MAX_QUEUED_STEPS = 2
# One in ``FREE_SLOT_DIVISOR`` slots is reserved for short requests.
FREE_SLOT_DIVISOR = 8
# Seconds between two polls of the engine's requests: less than a full step takes.
POLL_INTERVAL_S = 0.004


class LongRequestQueue:
    """Sends long requests to the engine only as fast as the engine computes their prompts.

    Some slots stay free for short requests. Replaces ``add_request`` of vLLM's client. Use on the
    engine's loop.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        config = client.vllm_config
        ranks = config.parallel_config.data_parallel_size
        scheduler = config.scheduler_config
        self._max_tokens: int = MAX_QUEUED_STEPS * ranks * scheduler.max_num_batched_tokens
        slots: int = ranks * scheduler.max_num_seqs
        self._max_requests = slots - slots // FREE_SLOT_DIVISOR
        self._lock = asyncio.Lock()
        # Log probabilities in each step of the long requests in the engine, by the requests' ids;
        # finished requests are removed later. The same for the comparisons of costly requests.
        self._logprobs: dict[str, int] = {}
        self._costly_lock = asyncio.Lock()
        self._comparisons: dict[str, int] = {}
        self._add_directly = ADD_REQUEST.replace(client, self.add_request)

    async def add_request(
        self, request_id: str, prompt: EngineInput, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Add a request to the engine; a long or costly one waits until the engine has capacity."""
        comparisons = _costly_comparisons(params)
        if not comparisons:
            return await self._add(request_id, prompt, params, *args, **kwargs)
        async with self._costly_lock:
            while not self._client.errored and self._has_no_time_for(comparisons):  # noqa: ASYNC110 - vLLM offers nothing to wait for
                await asyncio.sleep(POLL_INTERVAL_S)
            self._comparisons[request_id] = comparisons
            return await self._add(request_id, prompt, params, *args, **kwargs)

    async def _add(
        self, request_id: str, prompt: EngineInput, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not is_long.get():
            return await self._add_directly(request_id, prompt, params, *args, **kwargs)
        async with self._lock:
            while not self._client.errored and self._is_engine_full():  # noqa: ASYNC110 - vLLM offers nothing to wait for
                await asyncio.sleep(POLL_INTERVAL_S)
            self._logprobs[request_id] = _logprobs_per_step(params)
            return await self._add_directly(request_id, prompt, params, *args, **kwargs)

    def _is_engine_full(self) -> bool:
        long_requests = self._forget_finished(self._logprobs)
        waiting = sum(state.prompt_len for state in long_requests if state.is_prefilling)
        return (
            waiting >= self._max_tokens
            or len(long_requests) >= self._max_requests
            or sum(self._logprobs.values()) >= MAX_LIST_LOGPROBS_PER_STEP
        )

    def _has_no_time_for(self, comparisons: int) -> bool:
        """Return whether costly requests are running, and one more would compare too much."""
        self._forget_finished(self._comparisons)
        running = sum(self._comparisons.values())
        return running > 0 and running + comparisons > MAX_CONCURRENT_COMPARISONS

    def _forget_finished(self, work: dict[str, int]) -> list[RequestState]:
        """Remove finished requests from a dictionary by id; return the others' states."""
        states = self._client.output_processor.request_states.values()
        unfinished = [state for state in states if state.external_req_id in work]
        for request_id in work.keys() - {state.external_req_id for state in unfinished}:
            del work[request_id]
        return unfinished


def _costly_comparisons(params: Any) -> int:
    """Return the comparisons of all choices in a step; 0 if they take no more than a usual step."""
    detection = getattr(params, "repetition_detection", None)
    comparisons = comparisons_per_step(asdict(detection)) if detection else 0
    return comparisons * params.n if comparisons > MIN_COSTLY_COMPARISONS else 0


def _logprobs_per_step(params: Any) -> int:
    """Return the log probabilities of all choices in a step; 0 for a single step, as in a beam."""
    count = getattr(params, "num_logprobs", None)
    if count is None or params.max_tokens == 1:
        return 0
    return params.n * (1 + max(count, len(params.logprob_token_ids or ())))  # type: ignore[no-any-return]  # Any
