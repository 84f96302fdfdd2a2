"""The first requests, which the startup sends to an engine."""

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from worker.asgi import ResponseHead
from worker.engine.arguments import EngineArguments
from worker.engine.run.generation.prompts import example_input
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.start.checks import check_token_ids
from worker.errors import RefusedByEngine, RequestError, StartFailed
from worker.job import RawJob


@contextlib.contextmanager
def convert_first_request_refusals() -> Iterator[None]:
    """Convert the refusal of a first request into an error that makes the startup fail.

    Raises:
        StartFailed: The engine refuses the request; with its message.
    """
    try:
        yield
    except (RequestError, RefusedByEngine) as refused:
        raise StartFailed(f"a first request is refused: {refused.message}") from refused


async def warm_up(engine: InProcessEngine, arguments: EngineArguments) -> None:
    """Send first requests to an engine, to initialize everything before the first job.

    Models that generate get a raw and an OpenAI request, models that embed a raw one, others none.

    Raises:
        StartFailed: A request is refused, or the server responds with an error status.
        EngineDead: A request has killed the core.
        Exception: The code of the model or of its tokenizer fails.
    """
    if not {"generate", "embed"} & engine.model.tasks:
        # No single request is valid for all models that classify or score.
        return
    with convert_first_request_refusals():
        generation = engine.generation
        greeting_input = example_input(generation.prompts.chat_renderer)
        prompt = await generation.prompts.render_job_prompt(RawJob.from_input(greeting_input))
        check_token_ids(prompt["prompt_token_ids"], arguments.config.model_config)
        if "generate" in engine.model.tasks:
            await _generate_a_token(engine, greeting_input)
        else:
            await generation.embed(prompt, "warm-up")


async def _generate_a_token(engine: InProcessEngine, example: Mapping[str, Any]) -> None:
    """Send a raw request, and one to vLLM's server."""
    # An engine that compiles code compiles it for log probabilities at the first request for them.
    # This blocks the core for seconds.
    params = {"max_tokens": 1, "logprobs": 0}
    job = RawJob.from_input({**example, "sampling_params": params, "stream": True})
    async for _ in engine.generate(job, "warm-up"):
        pass
    path, body = "/v1/completions", example
    if messages := engine.generation.prompts.chat_messages(job):
        path, body = "/v1/chat/completions", {"messages": messages}
    status, content = HTTPStatus.OK, b""
    async for part in engine.call(path, {**body, "max_tokens": 1, "stream": True}, "warm-up"):
        if isinstance(part, ResponseHead):
            status = HTTPStatus(part.status)
        elif status is not HTTPStatus.OK:
            content += part
    if status is not HTTPStatus.OK:
        text = content.decode(errors="replace")
        raise StartFailed(f"vLLM's own server answers {status} to a first request: {text}")
