"""The worker's own first requests of an engine: sent by a start, and rendered by the doctor."""

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from worker.asgi import Head
from worker.engine.run.generation.prompts import greeting
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.seam.locations import find
from worker.engine.seam.translation import accepted, translated
from worker.engine.start.configuring import Configured
from worker.errors import RefusedByEngine, RequestError, StartFailed
from worker.job import RawJob
from worker.job.base import with_system_prompt


@contextlib.contextmanager
def not_to_be_refused() -> Iterator[None]:
    """Raise the refusal of a first request as what a start is refused for.

    Raises:
        ValueError: with the refusal's words.
    """
    try:
        yield
    except (RequestError, RefusedByEngine) as refused:
        raise ValueError(f"a first request is refused: {refused.message}") from refused


def check_rendering(configured: Configured, *, system_prompt: str | None) -> None:
    """Load the tokenizer, and render a first message as the warm-up does.

    Raises:
        Exception: one of ``START_ERRORS``.
    """
    model = configured.config.model_config
    if model.skip_tokenizer_init:
        return
    find("cached_tokenizer_from_config")(model)
    # A model that neither generates nor embeds is not asked anything by the warm-up.
    if model.runner_type == "generate" or model.convert_type == "embed":
        asyncio.run(_render(configured, system_prompt))


async def _render(configured: Configured, system_prompt: str | None) -> None:
    """Render with vLLM's server for machines that only render."""
    state = SimpleNamespace()
    await find("init_render_app_state")(configured.config, state, configured.arguments.vllm)
    chats = state.online_renderer
    try:
        if messages := greeting(chats).get("messages"):
            client: Any = SimpleNamespace(errored=False)
            with not_to_be_refused(), translated(client):
                request = find("ChatCompletionRequest")(
                    messages=with_system_prompt(messages, system_prompt), max_tokens=1
                )
                accepted(await chats.render_chat(request))
    finally:
        chats.renderer.shutdown()


async def warm_up(engine: InProcessEngine) -> None:
    """Answer a request on both paths, so that everything is built before the first job.

    Raises:
        StartFailed: a path does not answer.
        ValueError: vLLM refuses the request.
    """
    with not_to_be_refused():
        generation = engine.generation
        first = greeting(generation.prompts.chats)
        if "generate" not in engine.model.tasks:
            # There is no request that every model for classification or scoring takes.
            if "embed" in engine.model.tasks:
                prompt = await generation.prompts.render_job(RawJob.read(first))
                await generation.embed(prompt, "warm-up")
            return
        # An engine that compiles does so for log probabilities when they are first asked for: for
        # seconds, in which the core does nothing else.
        params = {"max_tokens": 1, "logprobs": 0}
        raw = RawJob.read({**first, "sampling_params": params, "stream": True})
        async for _ in engine.generate(raw, "warm-up"):
            pass
        path = "/v1/chat/completions" if raw.messages else "/v1/completions"
        body = {**first, "max_tokens": 1, "stream": True}
        async for part in engine.call(path, body, "warm-up"):
            if isinstance(part, Head) and part.status != 200:
                raise StartFailed(f"vLLM's own server answers {part.status} to a first request")
