"""Generation and embedding on the raw path and for scripts: vLLM's engine without its server."""

import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from functools import cached_property, partial
from typing import Any

from vllm.outputs import EmbeddingRequestOutput
from vllm.pooling_params import PoolingParams

from worker.engine import Delta
from worker.engine.run.adapters import Adapters
from worker.engine.run.generation.deltas import deltas, keep_best
from worker.engine.run.generation.prompts import Prompts
from worker.engine.run.generation.sampling import (
    Plan,
    beam_search_params,
    plan,
    plan_vllm_params,
    within,
)
from worker.engine.run.requests.bodies import check_bad_words
from worker.engine.run.requests.texts import mark
from worker.engine.run.server import Server
from worker.engine.seam.protocols import Client, EngineInput, LoRARequest, RequestOutput, Tokenizer
from worker.engine.seam.translation import translated
from worker.errors import InternalError, InvalidInput, RefusedByEngine
from worker.job import RawJob
from worker.job.sampling import Sampling
from worker.validation import SAMPLING

log = logging.getLogger(__name__)


class Generation:
    """Answers and embeddings of one client, with its server and adapters, on the engine's loop.

    ``defaults`` are sampling parameters for jobs that leave them out, and the system prompt opens
    conversations that have no system message.
    """

    def __init__(
        self,
        client: Client,
        server: Server,
        adapters: Adapters,
        *,
        tasks: tuple[str, ...],
        defaults: Mapping[str, Any],
        system_prompt: str | None,
    ) -> None:
        self.adapters = adapters
        self.prompts = Prompts(client, server, system_prompt)
        self._client = client
        self._server = server
        self._tasks = tasks
        self._defaults = defaults
        self._last_plan: tuple[Sampling, bool, Plan] | None = None

    async def deltas(
        self, job: RawJob, request_id: str, *, in_list: bool = False
    ) -> AsyncGenerator[Delta, None]:
        """Yield the answer to a raw job: see ``Engine.generate``."""
        mark(long=in_list)
        planned = self.plan(job.sampling_params, streamed=job.streamed)
        with translated(self._client):
            adapter = await self.adapters.of(job)
            prompt = await self._rendered(job)
            special = planned.params.skip_special_tokens
            decode = partial(self._decode, skip_special_tokens=special) if job.streamed else None
            ids = job.return_token_ids or self._tokenizer is None or not planned.params.detokenize
            outputs = self._outputs(prompt, planned, request_id, adapter)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    self._accept(output, planned, request_id)
                    for delta in deltas(output, decode, ids):
                        yield delta

    async def _rendered(self, job: RawJob) -> EngineInput:
        try:
            return await self.prompts.render_job(job, media=self._server.media)
        except RefusedByEngine as refused:
            body = {"messages": self.prompts.conversation(job), "tools": job.tools}
            raise await self._server.measured(refused, {**body, "prompt": job.prompt}) from refused

    def plan(self, params: Any, *, streamed: bool = False) -> Plan:
        """Plan an answer, for a job's parameters or vLLM's own ``SamplingParams``.

        Raises:
            WorkerError: a parameter is refused, or the model does not generate text.
        """
        if "generate" not in self._tasks:
            raise InvalidInput("This worker's model does not generate text")
        # The items of a list share one Sampling object, and so one plan.
        if self._last_plan and self._last_plan[0] is params and self._last_plan[1] == streamed:
            return self._last_plan[2]
        of_job = isinstance(params, Sampling)
        with translated(self._client):
            context = self._client.model_config.max_model_len
            planned = (
                plan(params, self._defaults, streamed=streamed, context=context)
                if of_job
                else plan_vllm_params(params)
            )
            check_bad_words(planned.params.bad_words, self._tokenizer, SAMPLING)
        if self._tokenizer is None:
            _refuse_text(planned)
        if of_job:  # vLLM's own object could change later
            self._last_plan = params, streamed, planned
        return planned

    async def check(self, job: RawJob) -> None:
        """See ``Engine.check``."""
        self.plan(job.sampling_params, streamed=job.streamed)
        await self.adapters.of(job)

    async def complete(
        self, prompt: EngineInput, planned: Plan, request_id: str, adapter: LoRARequest | None
    ) -> RequestOutput:
        """Return one whole answer.

        Raises:
            WorkerError: the request is refused, or the engine is dead.
        """
        with translated(self._client):
            outputs = self._outputs(prompt, planned, request_id, adapter)
            async with contextlib.aclosing(outputs):
                (output,) = [output async for output in outputs]
            self._accept(output, planned, request_id)
        return output

    async def embed(
        self, prompt: EngineInput, request_id: str, adapter: LoRARequest | None = None
    ) -> Any:
        """Return vLLM's ``EmbeddingRequestOutput`` of a prompt.

        Raises:
            WorkerError: the request is refused, or the engine is dead.
        """
        with translated(self._client):
            params = PoolingParams(task="embed")
            outputs = self._client.encode(prompt, params, request_id, lora_request=adapter)
            async with contextlib.aclosing(outputs):
                (output,) = [output async for output in outputs]
        return EmbeddingRequestOutput.from_base(output)

    def _outputs(
        self, prompt: EngineInput, planned: Plan, request_id: str, adapter: LoRARequest | None
    ) -> AsyncGenerator[RequestOutput, None]:
        if not planned.sampling.use_beam_search:
            params = within(self._client.model_config.max_model_len, planned.params, prompt)
            return self._client.generate(prompt, params, request_id, lora_request=adapter)
        # Beam search is a part of vLLM's server, not of its engine.
        params = beam_search_params(planned, prompt, self._client.model_config)
        search = self._server.state.openai_serving_completion.beam_search
        outputs: AsyncGenerator[RequestOutput, None] = search(
            prompt, request_id, params, lora_request=adapter
        )
        return outputs

    def _accept(self, output: RequestOutput, planned: Plan, request_id: str) -> None:
        """Raise if a choice has failed; keep the best choices where they are ranked."""
        if any(choice.finish_reason == "error" for choice in output.outputs):
            log.error("request %s failed in the engine", request_id)
            raise InternalError
        if planned.sampling.ranked:
            keep_best(output, planned, self._tokenizer, self._end_tokens)

    def _decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        if self._tokenizer is None:
            return ""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    @property
    def _tokenizer(self) -> Tokenizer | None:
        return self._client.renderer.tokenizer

    @cached_property
    def _end_tokens(self) -> set[int]:
        """The ids of the tokens with which the model ends a text."""
        config = self._client.model_config.try_get_generation_config() or {}
        ends = config.get("eos_token_id") or []
        return set(ends if isinstance(ends, list) else [ends])


def _refuse_text(planned: Plan) -> None:
    """Refuse parameters that need a tokenizer: vLLM would ignore them, or fail."""
    needed = {name: getattr(planned.params, name) for name in ("stop", "bad_words")}
    for name, value in {**needed, "use_beam_search": planned.sampling.use_beam_search}.items():
        if value:
            raise InvalidInput(f"{name}: this worker has no tokenizer", param=name)
