"""A hundred calls of LLM Engine's client at once: `python -m clients.llm_engine_mixed`.

Each is called alone first; all answers of a kind are then to be the same.
"""

import asyncio
import io
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llmengine
from clients.llm_engine_refusals import refused
from llmengine import Completion, File, Model

STORY = "Once upon a time there was a small worker"
ASKED: dict[str, Any] = {
    "model": "demo",
    "prompt": STORY,
    "max_new_tokens": 12,
    "temperature": 0.0,
}
OF_EACH = 10
THREADS = 70


def create() -> Any:
    return Completion.create(**ASKED).output.dict()


def guided() -> Any:
    return Completion.create(guided_choice=["yes", "no"], **ASKED).output.dict()


def log_probs() -> Any:
    """Return the tokens: probabilities differ a little by what runs beside them."""
    output = Completion.create(return_token_log_probs=True, **ASKED).output
    return [output.text, [token.token for token in output.tokens]]


def stream() -> list[Any]:
    events = [event.output for event in Completion.create(stream=True, **ASKED)]
    return [[event.text, event.finished, event.num_completion_tokens] for event in events]


def file() -> list[Any]:
    uploaded = File.upload(io.StringIO("prompt,response")).id
    content = File.download(uploaded).content
    return [content, File.delete(uploaded).deleted]


# Called in threads.
SYNC: dict[str, Callable[[], Any]] = {
    "create": create,
    "stream": stream,
    "guided": guided,
    "log probabilities": log_probs,
    "models": lambda: sorted(model.name for model in Model.list().model_endpoints),
    "file": file,
    "refused": lambda: refused(lambda: Completion.create(**{**ASKED, "model": "none"}))["error"],
}


async def created() -> Any:
    answer = await Completion.acreate(**ASKED)
    return answer.output.dict()


async def streamed() -> list[Any]:
    events = [event.output async for event in await Completion.acreate(stream=True, **ASKED)]
    return [[event.text, event.finished, event.num_completion_tokens] for event in events]


async def refused_async() -> str:
    try:
        await Completion.acreate(**ASKED, guided_regex="(")
    except llmengine.errors.BadRequestError as error:
        return type(error).__name__
    return ""


ASYNC = {"acreate": created, "async stream": streamed, "refused async": refused_async}


async def alone() -> dict[str, Any]:
    waited = {name: await call() for name, call in ASYNC.items()}
    return {**waited, **{name: call() for name, call in SYNC.items()}}


async def together() -> list[tuple[str, Any]]:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(THREADS) as threads:
        running = [
            (name, run)
            for _ in range(OF_EACH)
            for name, run in [
                *((name, loop.run_in_executor(threads, call)) for name, call in SYNC.items()),
                *((name, asyncio.ensure_future(call())) for name, call in ASYNC.items()),
            ]
        ]
        return [(name, await run) for name, run in running]


def main() -> None:
    answers = {"alone": asyncio.run(alone()), "together": asyncio.run(together())}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
