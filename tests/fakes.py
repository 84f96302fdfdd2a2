"""What unit tests put in place of the parts that take seconds, or that can't be made to fail."""

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Self

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from worker.app import Worker
from worker.asgi import App
from worker.engine import Delta
from worker.errors import EngineDead, RefusedByEngine, WorkerError
from worker.job import RawJob
from worker.settings import Settings

# One thing that the engine does: grow an answer, wait for so many seconds, or fail. A script that
# begins with RefusedByEngine refuses the request; with EngineDead the whole engine dies.
Step = Delta | float | Exception

HANG: float = math.inf

CHAT = "/v1/chat/completions"
PROMPT_TOKENS = 3


def tokens(
    *texts: str, index: int = 0, pause: float = 0.0, finish: str | None = "stop"
) -> list[Step]:
    """Script one choice, token by token, with so many seconds before each but the first."""
    steps: list[Step] = []
    for place, text in enumerate(texts, 1):
        if pause and place > 1:
            steps.append(pause)
        reason = finish if place == len(texts) else None
        steps.append(Delta(index, text, 1, PROMPT_TOKENS, finish_reason=reason))
    return steps


class ScriptedEngine:
    """Satisfies ``worker.engine.Engine`` by playing a script, the same one for every request.

    As with the real one, all of it runs on an event loop in a thread of its own, while the engine
    is entered. ``app`` plays the script too, as vLLM's server would, unless it is another one.
    """

    slots = 256

    def __init__(self, *script: Step, app: App | None = None) -> None:
        self.script = script
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.died: Future[None] = Future()
        self.app: App = app or _server(self)
        self.asked: list[RawJob | dict[str, Any]] = []
        self.generating: list[str] = []
        self.aborted: list[str] = []
        self._dead = False
        self._death = asyncio.Event()
        self._thread = threading.Thread(target=self.loop.run_forever, name="engine")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.loop.is_closed():
            self.close()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(_settle(), self.loop).result(5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    @property
    def dead(self) -> bool:
        return self._dead

    def mark_dead(self) -> None:  # but let whoever uses the engine find out
        self._dead = True

    def die(self) -> None:
        """Stop going on, from any thread; what is being generated fails at once."""
        self.mark_dead()
        self.loop.call_soon_threadsafe(self._death.set)
        self.died.set_result(None)

    async def check(self, job: RawJob) -> None: ...

    async def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        self.asked.append(job)
        async with contextlib.aclosing(self.play(request_id)) as deltas:
            if job.stream:
                async for delta in deltas:
                    yield delta
            else:
                for whole in joined([delta async for delta in deltas]):
                    yield whole

    async def play(self, request_id: str) -> AsyncGenerator[Delta, None]:
        assert asyncio.get_running_loop() is self.loop, "the engine is used on its own loop only"
        self.generating.append(request_id)
        try:
            for step in self.script:
                if isinstance(step, Delta):
                    yield step
                elif isinstance(step, float):
                    await self._pause(step)
                else:
                    self._fail(step)
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.append(request_id)
            raise
        finally:
            self.generating.remove(request_id)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == HANG else seconds):
                await self._death.wait()
        if self.dead:
            raise EngineDead

    def _fail(self, error: Exception) -> None:
        if isinstance(error, EngineDead):
            self.die()
        raise error


def joined(deltas: Sequence[Delta]) -> list[Delta]:  # one a choice
    choices: dict[int, list[Delta]] = {}
    for delta in deltas:
        choices.setdefault(delta.index, []).append(delta)
    return [
        Delta(
            index=index,
            text="".join(part.text for part in parts),
            tokens=sum(part.tokens for part in parts),
            prompt_tokens=parts[-1].prompt_tokens,
            finish_reason=parts[-1].finish_reason,
        )
        for index, parts in choices.items()
    ]


def _server(engine: ScriptedEngine) -> Starlette:
    """Play the engine's script over HTTP, with the little of vLLM's server that the worker sees."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "demo"}]})

    async def complete(request: Request) -> Response:
        body = await request.json()
        engine.asked.append(body)
        request_id = request.headers["x-request-id"]
        if engine.script and isinstance(engine.script[0], RefusedByEngine):
            return _error_response(engine.script[0])
        if body.get("stream"):
            return StreamingResponse(
                _events(engine, request_id), media_type="text/event-stream; charset=utf-8"
            )
        return await _unless_disconnected(request, _whole(engine, request_id))

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route(CHAT, complete, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
        ],
    )


async def _events(engine: ScriptedEngine, request_id: str) -> AsyncGenerator[str, None]:
    try:
        async with contextlib.aclosing(engine.play(request_id)) as deltas:
            async for delta in deltas:
                choice = {"index": delta.index, "delta": {"content": delta.text}}
                reason = {"finish_reason": delta.finish_reason}
                yield event({"id": request_id, "choices": [choice | reason]})
    except WorkerError as error:
        yield event(_error(error))
    yield "data: [DONE]\n\n"


async def _whole(engine: ScriptedEngine, request_id: str) -> Response:
    try:
        deltas = [delta async for delta in engine.play(request_id)]
    except WorkerError as error:
        return _error_response(error)
    choices = [
        {
            "index": delta.index,
            "message": {"role": "assistant", "content": delta.text},
            "finish_reason": delta.finish_reason,
        }
        for delta in joined(deltas)
    ]
    return JSONResponse({"id": request_id, "choices": choices})


async def _unless_disconnected(request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
    """Drop an answer that is not streamed when its client leaves, as vLLM does."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(request.receive())
    await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
    if leaving.done():
        answering.cancel()
        await asyncio.wait({answering})
        return Response(status_code=499)
    leaving.cancel()
    return await answering


def event(data: dict[str, Any]) -> str:
    """One SSE event, written as compactly as vLLM does."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _error(error: WorkerError) -> dict[str, Any]:
    """vLLM's form of an error, without what the worker's contract adds."""
    told = error.body()["error"]
    return {"error": {key: told[key] for key in ("message", "type", "param", "code")}}


def _error_response(error: WorkerError) -> Response:
    return JSONResponse(_error(error), status_code=error.status)


async def _settle() -> None:
    """Cancel what still runs on the loop, so that it can be closed in silence."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()


# What tests do with an engine:


def settings(**environ: str) -> Settings:
    return Settings.from_env({"MODEL_NAME": "demo", **environ})


def worker(engine: ScriptedEngine, **environ: str) -> Worker:
    return Worker(engine, settings(**environ))


def chat(*, stream: bool, **keys: Any) -> dict[str, Any]:
    """A chat completion, as the platform's gateway hands it over."""
    messages = [{"role": "user", "content": "Hi"}]
    return {"openai_route": CHAT, "openai_input": {"messages": messages, "stream": stream}, **keys}


def raw(*, stream: bool, **keys: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "stream": stream, **keys}


async def yields_of(engine: ScriptedEngine, payload: Any, **environ: str) -> list[Any]:
    """Everything that a worker yields for a job."""
    job = {"id": "job-1", "input": payload}
    return [chunk async for chunk in worker(engine, **environ).handle(job)]


def failure(yields: list[Any]) -> dict[str, Any]:
    """What a job failed with, by a last yield that holds nothing else."""
    assert yields, "the job yielded nothing"
    assert list(yields[-1]) == ["error"]
    assert not any("error" in chunk for chunk in yields[:-1] if isinstance(chunk, dict))
    error: dict[str, Any] = json.loads(yields[-1]["error"])["error"]
    return error


def events_in(text: str) -> list[Any]:
    """The data of an SSE text that must consist of whole events; the closing mark as it is."""
    assert text.endswith("\n\n"), f"not whole events: {text[-80:]!r}"
    data = [line.removeprefix("data: ") for line in text.removesuffix("\n\n").split("\n\n")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def texts_in(events: Iterable[Any]) -> list[str]:  # of chat events; others say nothing
    return [item["choices"][0]["delta"]["content"] for item in events if "choices" in item]


async def until(condition: Callable[[], bool], within: float) -> bool:
    """Whether a condition on what other threads do comes true in so many seconds."""
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
    return condition()
