"""Long requests, and items of lists: other requests wait behind only a few of them.

vLLM computes prompts in the order of their arrival. A list of a thousand prompts would delay every
request that arrives later, until the engine has computed the whole list. Whoever finds a request
long marks its task (``mark_if_long``). Its texts are then rendered in threads of their own, and it
waits in a queue before the engine gets it (``LongRequestQueue``).

vLLM's priority scheduling is not enough. It lets short prompts pass long prompts that wait, but
running requests keep their slots, so a short prompt waits for a free slot for seconds, not just for
one step. Also, any caller could then set a priority for a request.

A request for many choices is also long. vLLM makes a request of each choice, and those that would
take the reserved slots wait.

Requests whose ``repetition_detection`` compares many tokens in each step have a queue of their own.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from worker.engine.seam.patches import ADD_REQUEST, SEND_REQUEST, SUBMIT
from worker.engine.seam.protocols import Client, EngineInput, RequestState
from worker.limits.work import (
    MANY_ALTERNATIVES,
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
# Number of choices above which a request is long, and the engine gets them one by one.
MANY_CHOICES = 32
# Seconds between two polls of the engine's requests: less than a full step takes.
POLL_INTERVAL_S = 0.004

# Whether the current task belongs to a long request, or to a list of requests.
is_long: ContextVar[bool] = ContextVar("is_long", default=False)


def mark_if_long(*, long: bool) -> None:
    """Mark the current task as part of a long request if ``long``; a marked task stays marked."""
    is_long.set(long or is_long.get())


def reserve_thread_for_short_texts(executor: Executor, threads: int) -> None:
    """Let long requests wait for each other, so that other requests always find a free thread.

    Replaces ``submit`` of the executor in which vLLM renders and tokenizes. With a single thread,
    other requests wait for at most one long request.
    """
    # The threads of this pool wait for the threads of the executor, which have a tokenizer each.
    long_executor = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="long-texts")

    def submit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not is_long.get():
            return submit_directly(function, *args, **kwargs)
        return long_executor.submit(lambda: submit_directly(function, *args, **kwargs).result())

    submit_directly: Callable[..., Future[Any]] = SUBMIT.replace(executor, submit)


class LongRequestQueue:
    """Sends long requests to the engine only as fast as the engine computes their prompts.

    Some slots stay free for short requests. Replaces ``add_request`` of vLLM's client, and
    ``add_request_async`` of its connection to the core. Use on the engine's loop.
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
        # Callers' ids of the requests for many choices that are being added, and the ids of their
        # choices in the core.
        self._many: set[str] = set()
        self._choices: set[str] = set()
        self._choice_lock = asyncio.Lock()
        self._add_directly = ADD_REQUEST.replace(client, self.add_request)
        self._send_directly = SEND_REQUEST.replace(client.engine_core, self.send_request)

    async def add_request(
        self, request_id: str, prompt: EngineInput, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Add a request to the engine; a long or costly one waits until the engine has capacity."""
        detection = getattr(params, "repetition_detection", None)
        comparisons = comparisons_per_step(asdict(detection)) if detection else 0
        logprobs = _logprobs_per_step(params)
        has_many = logprobs and logprobs > params.n * (1 + MANY_ALTERNATIVES)
        async with contextlib.AsyncExitStack() as cleanup:
            if comparisons > MIN_COSTLY_COMPARISONS:
                comparisons *= params.n
                await cleanup.enter_async_context(self._costly_lock)
                await self._wait_while(lambda: self._has_no_time_for(comparisons))
                self._comparisons[request_id] = comparisons
            if is_long.get() or has_many:
                await cleanup.enter_async_context(self._lock)
                await self._wait_while(self._is_engine_full)
                self._logprobs[request_id] = logprobs
            if getattr(params, "n", 1) > MANY_CHOICES:
                self._many.add(request_id)
                cleanup.callback(self._many.discard, request_id)
            try:
                return await self._add_directly(request_id, prompt, params, *args, **kwargs)
            except asyncio.CancelledError:
                # Otherwise, the engine would compute the choices that it already has to their ends.
                if request_id in self._many:
                    await self._client.abort(request_id)
                raise

    async def send_request(self, request: Any) -> None:
        """Send a request to the core; one of many choices waits until the core has a slot."""
        if request.external_req_id not in self._many:
            await self._send_directly(request)
            return
        async with self._choice_lock:
            await self._wait_while(self._is_out_of_slots)
            self._choices.add(request.request_id)
            await self._send_directly(request)

    async def _wait_while(self, is_blocked: Callable[[], bool]) -> None:
        """Wait until a condition ends, or until the core dies: then the request fails by itself."""
        while not self._client.errored and is_blocked():  # noqa: ASYNC110 - vLLM offers nothing to wait for
            await asyncio.sleep(POLL_INTERVAL_S)

    def _is_engine_full(self) -> bool:
        long_requests = self._forget_finished(self._logprobs)
        waiting = sum(state.prompt_len for state in long_requests.values() if state.is_prefilling)
        return (
            waiting >= self._max_tokens
            or self._is_out_of_slots()
            or sum(self._logprobs.values()) >= MAX_LIST_LOGPROBS_PER_STEP
        )

    def _is_out_of_slots(self) -> bool:
        self._choices &= self._client.output_processor.request_states.keys()
        sent = {
            id
            for id, state in self._forget_finished(self._logprobs).items()
            if state.external_req_id not in self._many
        }
        return len(self._choices | sent) >= self._max_requests

    def _has_no_time_for(self, comparisons: int) -> bool:
        self._forget_finished(self._comparisons)
        running = sum(self._comparisons.values())
        return running > 0 and running + comparisons > MAX_CONCURRENT_COMPARISONS

    def _forget_finished(self, work: dict[str, int]) -> dict[str, RequestState]:
        """Remove finished requests from a dictionary by callers' ids; return the others' states."""
        states = self._client.output_processor.request_states
        unfinished = {id: state for id, state in states.items() if state.external_req_id in work}
        for request_id in work.keys() - {state.external_req_id for state in unfinished.values()}:
            del work[request_id]
        return unfinished


def _logprobs_per_step(params: Any) -> int:
    """Return the log probabilities of all choices in a step; 0 for a single step, as in a beam."""
    count = getattr(params, "num_logprobs", None)
    if count is None or params.max_tokens == 1:
        return 0
    return params.n * (1 + max(count, len(params.logprob_token_ids or ())))  # type: ignore[no-any-return]  # Any
