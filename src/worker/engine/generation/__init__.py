"""Generation and embedding past vLLM's server: plans, prompts and outputs of one client."""

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import cached_property, partial
from typing import Any

from worker.engine import Delta
from worker.engine.generation.deltas import best, deltas
from worker.engine.generation.prompts import Prompts
from worker.engine.generation.sampling import Plan, as_given, beam_search_params, plan
from worker.engine.locations import find
from worker.engine.server import Server
from worker.engine.translation import translated
from worker.errors import InternalError, InvalidInput, RefusedByEngine
from worker.job import RawJob
from worker.job.sampling import Sampling

log = logging.getLogger(__name__)


class Generation:
    """Belongs to the loop of its engine; ``defaults`` hold for parameters that a job leaves out."""

    def __init__(
        self, client: Any, server: Server, prompts: Prompts, tasks: Any, defaults: Mapping[str, Any]
    ) -> None:
        self.prompts = prompts
        self._client = client
        self._server = server
        self._tasks = tasks
        self._defaults = defaults
        self._planned: tuple[Any, bool, Plan] | None = None

    async def deltas(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        """Answer a raw job: see ``Engine.generate``."""
        planned = self.plan(job.sampling_params, streamed=job.streamed)
        try:
            with translated(self._client):
                adapter = await self.prompts.adapter(job)
                prompt = await self.prompts.render(job)
        except RefusedByEngine as refused:
            told = {"messages": self.prompts.conversation(job), "tools": job.tools}
            raise await self._server.measured(refused, {**told, "prompt": job.prompt}) from refused
        special = planned.params.skip_special_tokens
        decode = partial(self._decode, skip_special_tokens=special) if job.streamed else None
        ids = job.return_token_ids or self._tokenizer is None or not planned.params.detokenize
        async with contextlib.aclosing(
            self.outputs(prompt, planned, request_id, adapter)
        ) as outputs:
            async for output in outputs:
                for delta in deltas(output, decode, ids):
                    yield delta

    def plan(self, params: Any, *, streamed: bool = False) -> Plan:
        """Plan an answer, for a job's parameters or vLLM's own ``SamplingParams``.

        Raises:
            WorkerError: a parameter is refused.
        """
        if "generate" not in self._tasks:
            raise InvalidInput("This worker's model does not generate text")
        # The items of a list share theirs. They are frozen; vLLM's own object can have changed.
        job = isinstance(params, Sampling)
        if job and self._planned and self._planned[0] is params and self._planned[1] == streamed:
            return self._planned[2]
        with translated(self._client):
            planned = plan(params, self._defaults, streamed=streamed) if job else as_given(params)
        if self._tokenizer is None:
            _refuse_text(planned)
        self._planned = (params, streamed, planned)
        return planned

    async def check(self, job: RawJob) -> None:
        """See ``Engine.check``."""
        self.plan(job.sampling_params, streamed=job.streamed)
        with translated(self._client):
            await self.prompts.adapter(job)

    async def load(self, adapter: Any) -> Any:
        """Load a ``LoRARequest``'s adapter, or find one by its name; return what vLLM calls it by.

        Raises:
            WorkerError: it can't be loaded, or there is none.
        """
        with translated(self._client):
            named = isinstance(adapter, str)
            return await (self.prompts.named if named else self.prompts.load)(adapter)

    async def rendered(self, render: Callable[[], Awaitable[Any]]) -> Any:
        """Return the ``EngineInput`` that one of ``prompts``' methods makes.

        Raises:
            WorkerError: the prompt is refused.
        """
        with translated(self._client):
            return await render()

    async def complete(self, prompt: Any, planned: Plan, request_id: str, adapter: Any) -> Any:
        """Return one whole answer, vLLM's ``RequestOutput``, to its ``EngineInput``.

        Raises:
            WorkerError: the request is refused, or the engine is dead.
        """
        outputs = self.outputs(prompt, planned, request_id, adapter)
        async with contextlib.aclosing(outputs):
            (output,) = [output async for output in outputs]
        return output

    async def embed(self, prompt: Any, request_id: str, adapter: Any = None) -> Any:
        """Return vLLM's ``EmbeddingRequestOutput`` for its ``EngineInput``.

        Raises:
            WorkerError: the request is refused, or the engine is dead.
        """
        with translated(self._client):
            params = find("PoolingParams")(task="embed")
            outputs = self._client.encode(prompt, params, request_id, lora_request=adapter)
            async with contextlib.aclosing(outputs):
                (output,) = [output async for output in outputs]
        return find("EmbeddingRequestOutput").from_base(output)

    async def outputs(
        self, prompt: Any, planned: Plan, request_id: str, adapter: Any = None
    ) -> AsyncGenerator[Any, None]:
        """Yield vLLM's ``RequestOutput``s for its ``EngineInput``, and an ``adapter`` it serves.

        Raises:
            WorkerError: the request is refused, or the engine is dead.
        """
        with translated(self._client):
            begin = self._search if planned.beam_width else self._sample
            async with contextlib.aclosing(begin(prompt, planned, request_id, adapter)) as outputs:
                async for output in outputs:
                    if any(choice.finish_reason == "error" for choice in output.outputs):
                        log.error("request %s failed in the engine", request_id)
                        raise InternalError
                    yield (
                        output
                        if not planned.ranked
                        else best(output, planned, self._tokenizer, self._ends)
                    )

    def _sample(self, prompt: Any, planned: Plan, request_id: str, adapter: Any) -> Any:
        return self._client.generate(prompt, planned.params, request_id, lora_request=adapter)

    def _search(self, prompt: Any, planned: Plan, request_id: str, adapter: Any) -> Any:
        """Begin vLLM's beam search, which its server has, not its engine."""
        params = beam_search_params(planned, prompt, self._client.model_config)
        server = self._server.state.openai_serving_completion
        return server.beam_search(prompt, request_id, params, lora_request=adapter)

    def _decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        if self._tokenizer is None:
            return ""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    @property
    def _tokenizer(self) -> Any:
        return self._client.renderer.tokenizer

    @cached_property
    def _ends(self) -> set[int]:
        """The tokens with which the model ends a text."""
        config = self._client.model_config.try_get_generation_config() or {}
        ends = config.get("eos_token_id") or []
        return set(ends if isinstance(ends, list) else [ends])


def _refuse_text(planned: Plan) -> None:
    """Refuse what needs a tokenizer, which vLLM would pass over or fail at."""
    needed = {name: getattr(planned.params, name) for name in ("stop", "bad_words")}
    for name, value in {**needed, "use_beam_search": planned.beam_width}.items():
        if value:
            raise InvalidInput(f"{name}: this worker has no tokenizer", param=name)
