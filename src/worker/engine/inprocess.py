"""The running engine: vLLM's AsyncLLM in this process, on an event loop of its own."""

import asyncio
import contextlib
import logging
from argparse import Namespace
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi.exceptions import RequestValidationError

from worker.asgi import App
from worker.engine import Delta
from worker.engine.deltas import deltas
from worker.engine.locations import find
from worker.engine.sampling import sampling_params
from worker.engine.translation import explain, translated
from worker.errors import InternalError
from worker.job import RawJob
from worker.settings import Settings, is_set

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
        self._watchers: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Build vLLM's app around the engine and begin to watch it; call on the engine's loop."""
        args, client = self._arguments, self._client
        tasks = await client.get_supported_tasks()
        self.app = find("build_app")(args, tasks, client.model_config)
        _replace_handler(self.app, RequestValidationError, explain)
        # vLLM quotes parts of messages that it passes over.
        logging.getLogger("vllm.renderers.chat_utils").setLevel(logging.ERROR)
        state = self.app.state  # type: ignore[attr-defined]  # vLLM's app is a FastAPI
        await find("init_app_state")(client, state, _without_path(args), tasks)
        # vLLM's launcher would put its HTTP server here; error paths expect one.
        state.server = SimpleNamespace(should_exit=False)
        self._chat_params = find("ChatParams")(
            chat_template=find("load_chat_template")(args.chat_template),
            chat_template_content_format=args.chat_template_content_format,
            chat_template_kwargs={
                **(args.default_chat_template_kwargs or {}),
                # The renderer's own default is false, the server's is true.
                "add_generation_prompt": True,
            },
        )
        if is_set("GENERATION_CONFIG") or is_set("OVERRIDE_GENERATION_CONFIG"):
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
    def has_chat_template(self) -> bool:
        """Whether messages can be rendered; text models without one still take prompts."""
        tokenizer = self._client.renderer.tokenizer
        return bool(self._chat_params.chat_template or getattr(tokenizer, "chat_template", None))

    @property
    def unfinished_requests(self) -> int:
        """How many requests hold a slot in the engine, on either path."""
        return int(self._client.output_processor.get_num_unfinished_requests())

    async def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        """See ``Engine.generate``."""
        async with contextlib.aclosing(self._outputs(job, request_id)) as outputs:
            async for output in outputs:
                for delta in deltas(output, self._decode if job.stream else None):
                    yield delta

    async def _outputs(self, job: RawJob, request_id: str) -> AsyncGenerator[Any, None]:
        with translated():
            params = sampling_params(job, self._defaults)
            prompt = await self._render(job)
            async with contextlib.aclosing(
                self._client.generate(prompt, params, request_id)
            ) as outputs:
                async for output in outputs:
                    if any(choice.finish_reason == "error" for choice in output.outputs):
                        log.error("request %s failed in the engine", request_id)
                        raise InternalError
                    yield output

    async def _render(self, job: RawJob) -> Any:
        renderer = self._client.renderer
        if (conversation := job.conversation) is not None:
            _, (prompt,) = await renderer.render_chat_async([conversation], self._chat_params)
        else:
            parsed = find("parse_model_prompt")(self._client.model_config, job.prompt)
            (prompt,) = await renderer.render_cmpl_async([parsed])
        return prompt

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._client.renderer.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    async def _watch(self) -> None:
        """Tell the rest of the worker when the engine can't go on."""
        while not self.dead:  # noqa: ASYNC110 - vLLM offers nothing to wait for
            await asyncio.sleep(WATCH_INTERVAL_S)
        self.died.set_result(None)

    async def _log_stats(self) -> None:
        while True:
            await asyncio.sleep(STATS_INTERVAL_S)
            await self._client.do_log_stats()


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
