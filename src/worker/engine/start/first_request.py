"""The first requests to an engine, which the startup sends and ``--check`` only renders."""

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from worker.asgi import ResponseHead
from worker.engine.run.generation.prompts import example_input
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.translation import raise_for_error_response, translate_errors
from worker.engine.start.configuring import ConfiguredEngine
from worker.errors import RefusedByEngine, RequestError, StartFailed
from worker.job import RawJob
from worker.job.base import add_system_prompt


@contextlib.contextmanager
def convert_first_request_refusals() -> Iterator[None]:
    """Convert the refusal of a first request into an error that makes the startup fail.

    Raises:
        ValueError: The engine refuses the request; with its message.
    """
    try:
        yield
    except (RequestError, RefusedByEngine) as refused:
        raise ValueError(f"a first request is refused: {refused.message}") from refused


def check_tokenizer_and_rendering(
    configured: ConfiguredEngine, *, system_prompt: str | None
) -> None:
    """Check that the tokenizer loads and that the warm-up's first message can be rendered.

    Nothing is checked if the model is served without a tokenizer. A message is rendered only for
    models that generate or embed.

    Raises:
        Exception: The tokenizer doesn't load, or the message is refused (``START_ERRORS``).
    """
    model = configured.config.model_config
    if model.skip_tokenizer_init:
        return
    import_from_vllm("cached_tokenizer_from_config")(model)
    # The warm-up sends no request to a model that neither generates nor embeds.
    if model.runner_type == "generate" or model.convert_type == "embed":
        asyncio.run(_render_first_message(configured, system_prompt))


async def _render_first_message(configured: ConfiguredEngine, system_prompt: str | None) -> None:
    """Render the warm-up's message, if any, with the part of vLLM's server that needs no core."""
    state = SimpleNamespace()
    await import_from_vllm("init_render_app_state")(
        configured.config, state, configured.arguments.vllm_args
    )
    online_renderer = state.online_renderer
    try:
        if messages := example_input(online_renderer).get("messages"):
            client: Any = SimpleNamespace(errored=False)
            with convert_first_request_refusals(), translate_errors(client):
                request = import_from_vllm("ChatCompletionRequest")(
                    messages=add_system_prompt(messages, system_prompt), max_tokens=1
                )
                raise_for_error_response(await online_renderer.render_chat(request))
    finally:
        online_renderer.renderer.shutdown()


async def warm_up(engine: InProcessEngine) -> None:
    """Send first requests to an engine, to initialize everything before the first job.

    Models that generate get a raw and an OpenAI request, models that embed a raw one, others none.

    Raises:
        StartFailed: The server responds with an error status.
        ValueError: vLLM refuses a request.
    """
    with convert_first_request_refusals():
        generation = engine.generation
        greeting_input = example_input(generation.prompts.chat_renderer)
        if "generate" not in engine.model.tasks:
            # No single request is valid for all models that classify or score.
            if "embed" in engine.model.tasks:
                prompt = await generation.prompts.render_job_prompt(
                    RawJob.from_input(greeting_input)
                )
                await generation.embed(prompt, "warm-up")
            return
        # An engine that compiles code compiles it for log probabilities at the first request for
        # them. This blocks the core for seconds.
        params = {"max_tokens": 1, "logprobs": 0}
        job = RawJob.from_input({**greeting_input, "sampling_params": params, "stream": True})
        async for _ in engine.generate(job, "warm-up"):
            pass
        path = "/v1/chat/completions" if job.messages else "/v1/completions"
        body = {**greeting_input, "max_tokens": 1, "stream": True}
        async for part in engine.call(path, body, "warm-up"):
            if isinstance(part, ResponseHead) and part.status != 200:
                raise StartFailed(f"vLLM's own server answers {part.status} to a first request")
