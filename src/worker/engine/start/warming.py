"""The first requests of an engine, which are the worker's own."""

from worker.asgi import Head
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.start.first_request import not_to_be_refused
from worker.errors import StartFailed
from worker.job import RawJob


async def warm_up(engine: InProcessEngine) -> None:
    """Answer a request on both paths, so that everything is built before the first job.

    Raises:
        StartFailed: a path does not answer.
        ValueError: vLLM refuses the request.
    """
    with not_to_be_refused():
        await _warm_up(engine)


async def _warm_up(engine: InProcessEngine) -> None:
    generation = engine.generation
    greeting = generation.prompts.greeting
    if "generate" not in engine.model.tasks:
        # There is no request that every model for classification or scoring takes.
        if "embed" in engine.model.tasks:
            prompt = await generation.prompts.render_job(RawJob.read(greeting))
            await generation.embed(prompt, "warm-up")
        return
    one_token = {"max_tokens": 1, "stream": True}
    # An engine that compiles does so for log probabilities when they are first asked for: for
    # seconds, in which the core does nothing else.
    params = {"max_tokens": 1, "logprobs": 0}
    raw = RawJob.read({**greeting, "sampling_params": params, "stream": True})
    async for _ in engine.generate(raw, "warm-up"):
        pass
    path = "/v1/chat/completions" if raw.messages else "/v1/completions"
    body = {**greeting, **one_token}
    async for part in engine.call(path, body, "warm-up"):
        if isinstance(part, Head) and part.status != 200:
            raise StartFailed(f"vLLM's own server answers {part.status} to a first request")
