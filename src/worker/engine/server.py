"""vLLM's own server: its app, built around an engine and called in this process."""

import contextlib
import json
import logging
import types
import typing
from argparse import Namespace
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from worker import asgi
from worker.engine.locations import find
from worker.engine.translation import shows_media, translate, translated
from worker.errors import EngineDead, RefusedByEngine, WorkerError

# Loggers that quote parts of messages, and addresses of images with whatever tokens are in them.
# The second is the first's name before vLLM 0.32.
TALKATIVE = ("vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils", "vllm.connections")
# How vLLM names what it refuses a prompt for that is too long, and where it counts one that is not.
TOO_LONG = {"input_tokens", "input_text"}
TOKENIZE = "/tokenize"
# Whose prompts are made of more than their text.
RESPONSES = "/v1/responses"
# Bytes. Counting takes time: of a longer prompt it is not told how long it is.
MOST_COUNTED = 1_000_000
# One that prints the traceback of whatever it refuses.
ALARMED = "vllm.entrypoints.anthropic.api_router"


class Server:
    """Belongs to the loop of its engine."""

    def __init__(self, client: Any, arguments: Namespace, tasks: Any) -> None:
        self._client = client
        self._arguments = arguments
        self._tasks = tasks
        self._app = find("build_app")(arguments, tasks, client.model_config)
        _let_errors_out(self._app)
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.ERROR)
        logging.getLogger(ALARMED).addFilter(_is_defect)
        self._keys = dict(_bodies(self._app))

    @property
    def state(self) -> Any:
        """What vLLM's routes work with."""
        return self._app.state

    async def open(self) -> None:
        """Make what the routes work with; some of it may be on disk, and wrong.

        Raises:
            Exception: vLLM's own.
        """
        arguments = _without_path(self._arguments)
        await find("init_app_state")(self._client, self.state, arguments, self._tasks)
        # vLLM's launcher would put its HTTP server here; error paths expect one.
        self.state.server = SimpleNamespace(should_exit=False)

    def keys(self, path: str) -> frozenset[str] | None:
        """See ``Engine.keys``."""
        return self._keys.get(path)

    @property
    def schema(self) -> dict[str, Any]:
        """The server's OpenAPI document."""
        document: dict[str, Any] = self._app.openapi()
        return document

    async def call(
        self, path: str, body: Mapping[str, Any] | None, request_id: str
    ) -> AsyncGenerator[asgi.Head | bytes, None]:
        """See ``Engine.call``."""
        try:
            media = body is not None and shows_media(body.get("messages"))
            with translated(self._client, shows_media=media):
                data = b"" if body is None else _encoded(body)
                method = "GET" if body is None else "POST"
                request = asgi.Request(method, path, data, request_id)
                async with contextlib.aclosing(asgi.call(self._app, request)) as parts:
                    async for part in parts:
                        # vLLM's server would answer 500, or end a stream with an error event.
                        if self._client.errored:
                            raise EngineDead
                        yield part
        except RefusedByEngine as refused:
            told = body if body and path != RESPONSES else {}
            raise await self.measured(refused, told) from refused

    async def measured(self, refused: RefusedByEngine, body: Mapping[str, Any]) -> WorkerError:
        """Say of a prompt that is too long how long it is: vLLM counts no further than it must."""
        told = {"prompt": body.get("prompt", body.get("input"))}
        if body.get("messages") is not None:
            told = {key: body[key] for key in ("messages", "tools") if body.get(key) is not None}
        text = "messages" in told or isinstance(told["prompt"], str)
        if refused.param not in TOO_LONG or not text or len(_encoded(told)) > MOST_COUNTED:
            return refused
        request = asgi.Request("POST", TOKENIZE, _encoded(told))
        async with contextlib.aclosing(asgi.call(self._app, request)) as parts:
            answer = json.loads(b"".join([part async for part in parts if isinstance(part, bytes)]))
        return RefusedByEngine(
            f"The prompt has {answer['count']:,} tokens. Together with its answer, at most "
            f"{answer['max_model_len']:,} fit this model's context: send a shorter prompt.",
            status=refused.status,
            param=refused.param,
        )


def _is_defect(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, Exception) or translate(error) is None


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Encode a body; what no JSON can hold (half of a surrogate pair, NaN) is refused here."""
    # And what the engine's core could not be sent, which vLLM would notice too late.
    msgspec.msgpack.encode(body)
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def _bodies(app: Any) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the paths of a FastAPI app, and the keys of the bodies that it takes there."""
    for route in app.routes:
        if hasattr(route, "body_field"):
            shape = route.body_field and route.body_field.field_info.annotation
            yield route.path, frozenset(_fields(shape))


def _fields(shape: Any) -> Iterator[str]:
    if typing.get_origin(shape) in (typing.Annotated, typing.Union, types.UnionType):
        for alternative in typing.get_args(shape):
            yield from _fields(alternative)
    for name, field in getattr(shape, "model_fields", {}).items():
        yield name
        if field.alias:
            yield field.alias


def _let_errors_out(app: Any) -> None:
    """Let exceptions leave a FastAPI app: they are told in one place, as on the raw path."""
    refusals = app.exception_handlers.items()
    app.exception_handlers = {
        error: handler
        for error, handler in refusals
        if isinstance(error, type) and issubclass(error, HTTPException)
    }
    # vLLM has built the stack already, and it keeps the handlers it was built with.
    app.middleware_stack = app.build_middleware_stack()


def _without_path(arguments: Namespace) -> Namespace:
    """Let /v1/models call a model in a local directory by its name there, not by its path."""
    if not Path(arguments.model).is_dir():
        return arguments
    return Namespace(**vars(arguments) | {"model": arguments.served_model_name[-1]})
