"""Queue for long requests and items of lists: other requests wait behind only a few of them.

vLLM computes prompts in the order of their arrival. A list of a thousand prompts would delay every
request that arrives later, until the engine has computed the whole list.

vLLM's priority scheduling is not enough. It lets short prompts pass long prompts that wait, but
running requests keep their slots, so a short prompt waits for a free slot for seconds, not just for
one step. Also, any caller could then set a priority for a request.
"""

import asyncio
from typing import Any

from worker.engine.run.requests.texts import is_long
from worker.engine.seam.patches import ADD_REQUEST
from worker.engine.seam.protocols import Client, EngineInput

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
        # Ids of the long requests in the engine; ids of finished requests are removed later.
        self._sent_ids: set[str] = set()
        self._add_directly = ADD_REQUEST.replace(client, self.add_request)

    async def add_request(
        self, request_id: str, prompt: EngineInput, *args: Any, **kwargs: Any
    ) -> Any:
        """Add a request to the engine; a long request waits until the engine has capacity."""
        if not is_long.get():
            return await self._add_directly(request_id, prompt, *args, **kwargs)
        async with self._lock:
            while not self._client.errored and self._is_engine_full():  # noqa: ASYNC110 - vLLM offers nothing to wait for
                await asyncio.sleep(POLL_INTERVAL_S)
            self._sent_ids.add(request_id)
            return await self._add_directly(request_id, prompt, *args, **kwargs)

    def _is_engine_full(self) -> bool:
        states = self._client.output_processor.request_states.values()
        long_requests = [state for state in states if state.external_req_id in self._sent_ids]
        self._sent_ids = {state.external_req_id for state in long_requests}
        waiting = sum(state.prompt_len for state in long_requests if state.is_prefilling)
        return waiting >= self._max_tokens or len(long_requests) >= self._max_requests
