"""Long requests, and those of lists, go to the engine in turn: others wait behind few of them.

vLLM computes prompts in the order in which they came. A list of a thousand would stand in front of
everybody who comes a moment later, for as long as the engine needs for all of them.

vLLM's scheduling by priority is not enough: it lets short prompts pass the long ones that wait, but
those that generate keep all places, and a short one waits for an end, seconds instead of a step.
Also, any caller could then put a priority on a request.
"""

import asyncio
from typing import Any

from worker.engine.run.requests.texts import is_long
from worker.engine.seam.patches import ADD_REQUEST
from worker.engine.seam.protocols import Client, EngineInput

# Steps of the engine whose prompts may wait there: one is computed, the next one is at hand.
STEPS = 2
# One place in so many is left to short requests.
LEFT_FREE = 8
# Seconds until what the engine has is looked at again: less than a full step takes. vLLM tells
# nobody that a prompt has been computed.
LOOKS_S = 0.004


class Turns:
    """Lets the long requests of a client wait for each other before its engine has them.

    Use on the engine's loop.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        config = client.vllm_config
        ranks = config.parallel_config.data_parallel_size
        scheduler = config.scheduler_config
        self._most_tokens: int = STEPS * ranks * scheduler.max_num_batched_tokens
        places: int = ranks * scheduler.max_num_seqs
        self._most_requests = places - places // LEFT_FREE
        self._one = asyncio.Lock()
        # Those that the engine may have; vLLM's states of them hold these names.
        self._entered: set[str] = set()
        self._add = ADD_REQUEST.replace(client, self.add_request)

    async def add_request(
        self, request_id: str, prompt: EngineInput, *args: Any, **kwargs: Any
    ) -> Any:
        """Add a request to the engine; a long one waits until the engine needs it."""
        if not is_long.get():
            return await self._add(request_id, prompt, *args, **kwargs)
        async with self._one:
            while not self._client.errored and self._full():  # noqa: ASYNC110 - vLLM offers nothing to wait for
                await asyncio.sleep(LOOKS_S)
            self._entered.add(request_id)
            return await self._add(request_id, prompt, *args, **kwargs)

    def _full(self) -> bool:
        states = self._client.output_processor.request_states.values()
        long = [state for state in states if state.external_req_id in self._entered]
        self._entered = {state.external_req_id for state in long}
        waiting = sum(state.prompt_len for state in long if state.is_prefilling)
        return waiting >= self._most_tokens or len(long) >= self._most_requests
