"""The running engine: vLLM's AsyncLLM in this process, on an event loop of its own."""

import asyncio
import contextlib
import logging
from argparse import Namespace
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi.exceptions import RequestValidationError

from worker.asgi import App
from worker.engine import Delta
from worker.engine.deltas import best, deltas
from worker.engine.locations import find
from worker.engine.prompts import Prompts
from worker.engine.sampling import Plan, as_given, beam_search_params, plan
from worker.engine.translation import explain, translated
from worker.errors import InternalError, InvalidInput
from worker.job import RawJob
from worker.job.sampling import Sampling
from worker.settings import Settings

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.1
STATS_INTERVAL_S = 10.0


class InProcessEngine:
    """Satisfies ``worker.engine.Engine``. Made by ``worker.engine.launch``."""

    def __init__(
        self,
        client: Any,
        arguments: Namespace,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.loop = loop
        self.died: Future[None] = Future()
        self.app: App
        self._client = client
        self._arguments = arguments
        self._settings = settings
        self._defaults: dict[str, Any] = {"max_tokens": settings.default_max_tokens}
        self._planned: tuple[Any, bool, Plan] | None = None
        self._watchers: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Build vLLM's app around the engine and begin to watch it; call on the engine's loop."""
        args, client = self._arguments, self._client
        self._tasks = tasks = await client.get_supported_tasks()
        self.app = find("build_app")(args, tasks, client.model_config)
        _replace_handler(self.app, RequestValidationError, explain)
        # vLLM quotes parts of messages that it passes over.
        logging.getLogger("vllm.renderers.chat_utils").setLevel(logging.ERROR)
        # And the addresses of images that it could not fetch, with whatever tokens are in them.
        logging.getLogger("vllm.connections").setLevel(logging.ERROR)
        state = self.app.state  # type: ignore[attr-defined]  # vLLM's app is a FastAPI
        await find("init_app_state")(client, state, _without_path(args), tasks)
        # vLLM's launcher would put its HTTP server here; error paths expect one.
        state.server = SimpleNamespace(should_exit=False)
        self.prompts = Prompts(client, state)
        if args.given & {"GENERATION_CONFIG", "OVERRIDE_GENERATION_CONFIG"}:
            self._defaults |= client.model_config.get_diff_sampling_param()
        self._watchers.append(asyncio.create_task(self._watch()))
        if not self._settings.disable_log_stats:
            self._watchers.append(asyncio.create_task(self._log_stats()))

    async def close(self) -> None:
        """Stop the engine and its processes; call on the engine's loop."""
        for watcher in self._watchers:
            watcher.cancel()
        self._client.shutdown()

    @property
    def dead(self) -> bool:
        return bool(self._client.errored)

    @property
    def slots(self) -> int:
        return int(self._client.vllm_config.scheduler_config.max_num_seqs)

    @property
    def unfinished_requests(self) -> int:
        """How many requests hold a slot in the engine, on either path."""
        return int(self._client.output_processor.get_num_unfinished_requests())

    @property
    def generates(self) -> bool:
        """Whether the model generates text; else it embeds, or scores."""
        return "generate" in self._tasks

    async def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        """See ``Engine.generate``."""
        planned = self.plan(job.sampling_params, streamed=job.streamed)
        with translated():
            adapter = await self.prompts.adapter(job)
            prompt = await self.prompts.render(job)
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
        if not self.generates:
            raise InvalidInput("This worker's model does not generate text")
        # The items of a list share theirs. They are frozen; vLLM's own object can have changed.
        job = isinstance(params, Sampling)
        if job and self._planned and self._planned[0] is params and self._planned[1] == streamed:
            return self._planned[2]
        with translated():
            planned = plan(params, self._defaults, streamed=streamed) if job else as_given(params)
        if self._tokenizer is None:
            _refuse_text(planned)
        self._planned = (params, streamed, planned)
        return planned

    async def check(self, job: RawJob) -> None:
        """See ``Engine.check``."""
        self.plan(job.sampling_params, streamed=job.streamed)
        with translated():
            await self.prompts.adapter(job)

    async def load(self, adapter: Any) -> Any:
        """Load a ``LoRARequest``'s adapter, or find one by its name; return what vLLM calls it by.

        Raises:
            WorkerError: it can't be loaded, or there is none.
        """
        with translated():
            named = isinstance(adapter, str)
            return await (self.prompts.named if named else self.prompts.load)(adapter)

    async def rendered(self, render: Callable[[], Awaitable[Any]]) -> Any:
        """Return the ``EngineInput`` that one of ``prompts``' methods makes.

        Raises:
            WorkerError: the prompt is refused.
        """
        with translated():
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
        with translated():
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
        with translated():
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
        server = self.app.state.openai_serving_completion  # type: ignore[attr-defined]  # see open
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

    async def _watch(self) -> None:
        """Tell the rest of the worker when the engine can't go on."""
        while not self.dead:  # noqa: ASYNC110 - vLLM offers nothing to wait for
            await asyncio.sleep(WATCH_INTERVAL_S)
        self.died.set_result(None)

    async def _log_stats(self) -> None:
        while True:
            await asyncio.sleep(STATS_INTERVAL_S)
            await self._client.do_log_stats()


def _refuse_text(planned: Plan) -> None:
    """Refuse what needs a tokenizer, which vLLM would pass over or fail at."""
    needed = {name: getattr(planned.params, name) for name in ("stop", "bad_words")}
    for name, value in {**needed, "use_beam_search": planned.beam_width}.items():
        if value:
            raise InvalidInput(f"{name}: this worker has no tokenizer", param=name)


def _without_path(arguments: Namespace) -> Namespace:
    """Let /v1/models call a model in a local directory by its name there, not by its path."""
    if not Path(arguments.model).is_dir():
        return arguments
    return Namespace(**vars(arguments) | {"model": arguments.served_model_name[0]})


def _replace_handler(app: Any, error: type[Exception], handler: Any) -> None:
    """Have a FastAPI app answer an error in our words: vLLM's own quote what was refused."""
    app.add_exception_handler(error, handler)
    # vLLM has built the stack already, and it keeps the handlers it was built with.
    app.middleware_stack = app.build_middleware_stack()
