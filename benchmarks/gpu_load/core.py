"""An executor of vLLM that takes as long as a GPU and computes nothing.

vLLM imports it by name in the core. Everything else is vLLM's own: the core's process, its
scheduler, cache of blocks and messages, and the process with the server.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

from gpu_load.pacing import RECORDS_VARIABLE, Clock, Scripts

# Blocks of the cache, enough for 1,024 requests with 2,560 tokens; no memory is allocated for them.
CACHE_BLOCKS = 1024 * 80
# Pace for requests that set none, such as those of a start.
DEFAULT_PACE = 100.0


class ScriptedExecutor(UniProcExecutor):  # type: ignore[misc]  # Any
    """Answers with words at a pace: `vllm_xargs` of a request has the pace and `tool`."""

    def _init_executor(self) -> None:
        super()._init_executor()
        self._clock = Clock(Path(os.environ[RECORDS_VARIABLE]))
        file = Path(self.model_config.model, "tokenizer.json")
        self._scripts = Scripts(Tokenizer.from_file(str(file)))
        self._numbers = count()
        self._pace = DEFAULT_PACE
        # Of each running request, the length of the prompt and the tokens of the answer.
        self._requests: dict[str, tuple[int, list[int]]] = {}

    def determine_available_memory(self) -> list[int]:
        (layers,) = self.get_kv_cache_specs()
        return [CACHE_BLOCKS * sum(layer.page_size_bytes for layer in layers.values())]

    def initialize_from_config(self, _: list[Any]) -> None:
        """Allocate nothing."""

    def compile_or_warm_up_model(self) -> None:
        """Compile nothing."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        output = self._run_step(scheduler_output)
        if not non_block:
            return output
        future: Future[Any] = Future()
        future.set_result(output)
        return future

    def _run_step(self, step: Any) -> Any:
        for request_id in step.finished_req_ids:
            self._requests.pop(request_id, None)
        for request in step.scheduled_new_reqs:
            self._add_request(request)
        if not step.num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        sampled: dict[str, list[int]] = {}
        prompt_tokens = running = 0
        for request_id, computed, outputs in _positions(step):
            prompt, script = self._requests[request_id]
            scheduled = step.num_scheduled_tokens[request_id]
            # A step samples no token if it computes only a part of a prompt.
            is_sampled = computed + scheduled == prompt + outputs
            sampled[request_id] = [script[outputs]] if is_sampled else []
            prompt_tokens += scheduled - (is_sampled and outputs > 0)
            running += outputs + is_sampled < len(script)
        is_last = running == 0 and len(sampled) == len(self._requests)
        new_tokens = sum(map(len, sampled.values()))
        self._clock.run_step(self._pace, prompt_tokens, new_tokens, is_last=is_last)
        indices = {request_id: index for index, request_id in enumerate(sampled)}
        return ModelRunnerOutput([*sampled], indices, [*sampled.values()])

    def _add_request(self, request: Any) -> None:
        params = request.sampling_params
        options = params.extra_args or {}
        self._pace = options.get("pace", params.seed or DEFAULT_PACE)
        calls_tool = bool(options.get("tool"))
        script = self._scripts.write(next(self._numbers), params.max_tokens, calls_tool=calls_tool)
        self._requests[request.req_id] = len(request.prompt_token_ids), script


def _positions(step: Any) -> Iterator[tuple[str, int, int]]:
    """Yield the id, the number of computed tokens and the length of the answer of each request."""
    for request in step.scheduled_new_reqs:
        yield request.req_id, request.num_computed_tokens, 0
    requests = step.scheduled_cached_reqs
    yield from zip(
        requests.req_ids, requests.num_computed_tokens, requests.num_output_tokens, strict=True
    )
