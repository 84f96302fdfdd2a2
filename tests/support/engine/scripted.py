"""A scripted engine, for unit tests of timing and faults that the real engine can't produce.

It comes with the part of vLLM's server that the worker uses, which plays the script over HTTP, with
jobs for it, and with readers of their yields.
"""

import asyncio
import contextlib
import json
import math
import threading
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import uvloop
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from support.processes.background import HUNG_S
from worker import asgi
from worker.app import Worker
from worker.engine import Delta, Engine, Engines, Model
from worker.engine.run.suspension import Suspension
from worker.errors import EngineDead, OnOtherVolume, RefusedByEngine, WorkerError
from worker.job import RawJob
from worker.limits.inputs import EMPTY_SHAPE, BodyShape
from worker.record import EngineUse, Usage, engine_use
from worker.settings import Settings

CHAT = "/v1/chat/completions"
# Routes that answer every request immediately, with their own path.
ECHO_ROUTES = (
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/tokenize",
)

# Keys of request bodies, by path.
_COMMON = {"model", "stream", "temperature"}
_SAMPLING = _COMMON | {"n", "max_tokens", "logprobs", "structured_outputs"}
_SAMPLING |= {"use_beam_search", "length_penalty"}
KEYS = {
    CHAT: frozenset({"messages", "tools", "chat_template_kwargs", *_SAMPLING}),
    "/v1/completions": frozenset({"prompt", "echo", *_SAMPLING}),
    "/v1/responses": frozenset({"input", "instructions", "request_id", *_COMMON}),
    "/v1/messages": frozenset({"messages", "system", *_COMMON}),
    "/v1/messages/count_tokens": frozenset({"messages", "system", "model"}),
    "/tokenize": frozenset({"messages", "prompt", "model"}),
    "/version": frozenset[str](),
}

# One step of the engine: new output, a pause in seconds or until an event of its loop is set, or an
# error. RefusedByEngine as the first step refuses the request; EngineDead kills the whole engine.
Step = Delta | float | asyncio.Event | Exception

HANG: float = math.inf

PROMPT_TOKENS = 3
# Time of the GPU that the engine reports for a token.
SECONDS_PER_TOKEN = 0.25


def tokens(
    *texts: str, index: int = 0, pause: float = 0.0, finish: str | None = "stop"
) -> list[Step]:
    """Script one choice, token by token, with ``pause`` seconds between tokens."""
    steps: list[Step] = []
    for place, text in enumerate(texts, 1):
        if pause and place > 1:
            steps.append(pause)
        reason = finish if place == len(texts) else None
        steps.append(Delta(index, text, 1, PROMPT_TOKENS, finish_reason=reason))
    return steps


class ScriptedEngine:
    """Implements ``worker.engine.Engine`` by playing the same script for every request.

    Like the real engine, it runs on an event loop in its own thread, while the context manager is
    open.
    ``app`` replaces vLLM's server, and plays the script, too, by default.
    """

    slots = 256
    # Prompt and output tokens that vLLM's server counts for a request; None if it doesn't count
    # them.
    token_counts: tuple[int, int] | None = None
    embedder: Engine | None = None
    model = Model(("demo",), 1024, "cpu", tasks=frozenset({"generate"}))
    bodies: Mapping[str, frozenset[str]] = KEYS
    openapi_schema: Mapping[str, Any] = {"info": {}, "paths": {}, "components": {"schemas": {}}}

    def __init__(self, *script: Step, app: ASGIApp | None = None) -> None:
        self.script = script
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.died: Future[None] = Future()
        self.app: ASGIApp = app or make_app(self)
        self.metrics = CollectorRegistry()
        self.adapters: list[str] = []
        # Adapters that can't be loaded, with the reasons.
        self.broken_adapters: dict[str, str] = {}
        self.requests: list[RawJob | dict[str, Any]] = []
        # Ids of requests that are items of a list.
        self.list_items: list[str] = []
        self.active_requests: list[str] = []
        self.aborted_requests: list[str] = []
        # Script of the engine after it has died and recovered; None if it does not recover.
        self.next_script: tuple[Step, ...] | None = None
        # Ids of requests that waited for the engine's recovery.
        self.requests_awaiting_recovery: list[str] = []
        self.suspension = Suspension()
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
        asyncio.run_coroutine_threadsafe(_settle(), self.loop).result(HUNG_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    @property
    def engines(self) -> Engines:
        """The engines of a worker, with this one as the model's."""
        return Engines(*filter(None, (self, self.embedder)), died=self.died)

    @property
    def is_dead(self) -> bool:
        return self._dead

    def mark_dead(self) -> None:
        """Mark the engine as dead, without ending requests or resolving ``died``."""
        self._dead = True

    def die(self) -> None:
        """Kill the engine, from any thread: running requests fail immediately."""
        self.mark_dead()
        self.loop.call_soon_threadsafe(self._death.set)
        self.died.set_result(None)

    @property
    def is_suspended(self) -> bool:
        return self.suspension.is_active

    def suspend(
        self, wait_timeout_s: float, drain_timeout_s: float
    ) -> contextlib.AbstractAsyncContextManager[None]:
        return self.suspension.suspend(wait_timeout_s)

    async def wait_until_resumed(self) -> None:
        await self.suspension.wait_until_resumed()

    async def wait_for_recovery(self, request_id: str) -> None:
        """Continue with ``next_script`` if there is one."""
        self.requests_awaiting_recovery.append(request_id)
        if not self._dead:
            return
        if self.next_script is None:
            raise EngineDead
        self.script, self.next_script = self.next_script, None
        self._dead = False
        self._death.clear()

    def body_keys(self, path: str) -> frozenset[str] | None:
        return self.bodies.get(path)

    async def call(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        request_id: str,
        usage: Usage | None = None,
        shape: BodyShape = EMPTY_SHAPE,
        take_part: Callable[[bytes, bool], bool] = asgi.take_no_part,
    ) -> AsyncGenerator[asgi.ResponseHead | bytes, None]:
        data = b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        request = asgi.Request(method, path, data, request_id)
        with self._raise_if_dead():
            parts = asgi.call_app(self.app, request, take_part=take_part)
            async with contextlib.aclosing(parts):
                async for part in parts:
                    if self.is_dead:
                        raise EngineDead
                    yield part
        if usage is not None and self.token_counts is not None:
            usage.add(*self.token_counts)

    async def model_cards(self, request_id: str) -> list[dict[str, Any]]:
        async with contextlib.aclosing(self.call("/v1/models", None, request_id)) as parts:
            body = b"".join([part async for part in parts if isinstance(part, bytes)])
        cards: list[dict[str, Any]] = json.loads(body)["data"]
        return cards

    async def check_job(self, job: RawJob) -> None: ...

    async def adapter_problems_on_volume(self) -> Mapping[str, str | None]:
        return dict.fromkeys(self.adapters) | self.broken_adapters

    async def load_adapter(self, name: str) -> None:
        if name not in self.adapters:
            raise RefusedByEngine(f"no {name}", status=404, param="model")

    async def check_adapter(self, directory: Path) -> None: ...

    async def unload_adapter(self, name: str) -> None:
        self.adapters.remove(name)

    async def generate(
        self, job: RawJob, request_id: str, *, in_list: bool = False
    ) -> AsyncGenerator[Delta, None]:
        self.requests.append(job)
        if in_list:
            self.list_items.append(request_id)
        with self._raise_if_dead():
            async with contextlib.aclosing(self.play(request_id)) as deltas:
                if job.stream:
                    async for delta in deltas:
                        yield delta
                else:
                    for whole in join_deltas([delta async for delta in deltas]):
                        yield whole

    async def play(self, request_id: str) -> AsyncGenerator[Delta, None]:
        assert asyncio.get_running_loop() is self.loop, "the engine is used on its own loop only"
        self.active_requests.append(request_id)
        use, done = (
            engine_use.get(EngineUse()),
            EngineUse(model="demo", prompt_tokens=PROMPT_TOKENS),
        )
        end_request = use.start_request(lambda: use.add(done))
        try:
            for step in self.script:
                if isinstance(step, Delta):
                    done.output_tokens += step.tokens
                    done.gpu_seconds += SECONDS_PER_TOKEN * step.tokens
                    yield step
                elif isinstance(step, float):
                    await self._pause(step)
                elif isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    self._fail(step)
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted_requests.append(request_id)
            raise
        finally:
            self.active_requests.remove(request_id)
            if not self.is_dead:
                end_request()

    @contextlib.contextmanager
    def _raise_if_dead(self) -> Iterator[None]:
        """Raise ``EngineDead`` instead of other errors while the engine is dead."""
        try:
            yield
        except Exception as error:
            if self.is_dead:
                raise EngineDead from error
            raise

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == HANG else seconds):
                await self._death.wait()
        if self.is_dead:
            raise EngineDead

    def _fail(self, error: Exception) -> None:
        if isinstance(error, EngineDead):
            self.die()
        raise error


async def _settle() -> None:
    """Cancel the loop's tasks, so that closing the loop causes no warnings."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()


def make_app(engine: ScriptedEngine) -> Starlette:
    """Return an app with vLLM's routes that plays the engine's script."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "demo", "parent": None}]})

    async def version(_: Request) -> Response:
        return JSONResponse({"version": "0"})

    async def echo_path(request: Request) -> Response:
        engine.requests.append(await request.json())
        return JSONResponse({"path": request.url.path})

    async def complete(request: Request) -> Response:
        body = await request.json()
        engine.requests.append(body)
        request_id = request.headers["x-request-id"]
        first_step = engine.script[0] if engine.script else None
        if isinstance(first_step, RefusedByEngine):
            return _error_response(first_step)
        # The worker's own check of an adapter's name raises this error in vLLM's app.
        if isinstance(first_step, OnOtherVolume):
            raise first_step
        if body.get("stream"):
            return StreamingResponse(
                _events(engine, request_id), media_type="text/event-stream; charset=utf-8"
            )
        return await _cancel_on_disconnect(request, _complete(engine, request_id))

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/version", version),
            Route(CHAT, complete, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
            *(Route(path, echo_path, methods=["POST"]) for path in ECHO_ROUTES),
        ]
    )


def static_app(*parts: str, status: int = 200, media_type: str = "application/json") -> ASGIApp:
    """Return an app that answers every request with these parts; it runs on any loop."""
    headers = [(b"content-type", media_type.encode())]

    async def app(_: Message, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            body = {"type": "http.response.body", "body": part.encode(), "more_body": True}
            await send(body)

    return app


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


async def _complete(engine: ScriptedEngine, request_id: str) -> Response:
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
        for delta in join_deltas(deltas)
    ]
    return JSONResponse({"id": request_id, "choices": choices})


async def _cancel_on_disconnect(
    request: Request, answer: Coroutine[Any, Any, Response]
) -> Response:
    """Cancel an unstreamed response when its client disconnects, as vLLM does."""
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
    """Return an SSE event, formatted as compactly as vLLM's."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _error(error: WorkerError) -> dict[str, Any]:
    """Return an error in vLLM's format, without the worker's additional keys."""
    body = error.body()["error"]
    return {"error": {key: body[key] for key in ("message", "type", "param", "code")}}


def _error_response(error: WorkerError) -> Response:
    return JSONResponse(_error(error), status_code=error.status)


def join_deltas(deltas: Sequence[Delta]) -> list[Delta]:  # one per choice
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


def settings(**environ: str) -> Settings:
    return Settings.from_env({"MODEL_NAME": "demo", **environ})


def worker(engine: ScriptedEngine, **environ: str) -> Worker:
    return Worker(engine.engines, settings(**environ))


def chat_job(*, stream: bool, **keys: Any) -> dict[str, Any]:
    """Return the input of a chat completion as the platform's gateway sends it."""
    messages = [{"role": "user", "content": "Hi"}]
    return {"openai_route": CHAT, "openai_input": {"messages": messages, "stream": stream}, **keys}


def raw_job(*, stream: bool, **keys: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "stream": stream, **keys}


async def yields_of(engine: ScriptedEngine, payload: Any, **environ: str) -> list[Any]:
    """Return all yields of a job."""
    job = {"id": "job-1", "input": payload}
    return [chunk async for chunk in worker(engine, **environ).handle(job)]


def split_stream_error(yields: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the yields of an OpenAI stream that broke off, and the error of its job."""
    return yields[:-1], failure(yields[-1:])


def failure(yields: list[Any]) -> dict[str, Any]:
    """Return the error of a failed job, which must be the only key of its last yield."""
    assert yields, "the job yielded nothing"
    assert list(yields[-1]) == ["error"]
    assert not any("error" in chunk for chunk in yields[:-1] if isinstance(chunk, dict))
    error: dict[str, Any] = json.loads(yields[-1]["error"])["error"]
    return error


def events_in(text: str) -> list[Any]:
    """Return the decoded data of an SSE text, which must consist of whole events."""
    assert text.endswith("\n\n"), f"not whole events: {text[-80:]!r}"
    data = [line.removeprefix("data: ") for line in text.removesuffix("\n\n").split("\n\n")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def texts_in(events: Iterable[Any]) -> list[str]:
    """Return the texts of chat events; other events are skipped."""
    return [item["choices"][0]["delta"]["content"] for item in events if "choices" in item]
