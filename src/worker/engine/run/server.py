"""vLLM's own server: its FastAPI app, built around a client and called in this process."""

import contextlib
import json
import logging
import threading
import types
import typing
from argparse import Namespace
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from worker import asgi
from worker.engine.run.requests.bodies import check_bad_words, check_items
from worker.engine.run.requests.refusals import sanitized, silence_refusals
from worker.engine.run.requests.texts import bounded, is_long, keep_a_thread_free
from worker.engine.run.requests.turns import Turns
from worker.engine.seam.locations import find
from worker.engine.seam.patches import EXCEPTION_HANDLERS, SANITIZE, TO_MESSAGES
from worker.engine.seam.protocols import Client, RequestMetadata
from worker.engine.seam.translation import translated
from worker.errors import EngineDead, RefusedByEngine, WorkerError
from worker.limits.shapes import NONE, RAW, Shape
from worker.media import Media
from worker.media.walker import find as find_media
from worker.record import Usage

log = logging.getLogger(__name__)

# The parameters that vLLM names when a prompt is too long.
TOO_LONG = {"input_tokens", "input_text"}


class Server:
    """Use on the engine's loop.

    ``media`` replaces those of requests by what vLLM may read.
    """

    def __init__(
        self, client: Client, arguments: Namespace, tasks: tuple[str, ...], media: Media
    ) -> None:
        self._client = client
        self.media = media
        self._arguments = arguments
        self._tasks = tasks
        self._app = find("build_app")(arguments, tasks, client.model_config)
        SANITIZE.replace_imported(sanitized)
        _let_errors_out(self._app)
        silence_refusals()
        self._keys = dict(_body_keys(self._app))
        # Building the document takes a second or two: several at once would each build it.
        self._describing = threading.Lock()

    @property
    def state(self) -> Any:
        """The state of vLLM's app: the objects that its routes use."""
        return self._app.state

    async def open(self) -> None:
        """Build the app's state.

        Raises:
            Exception: vLLM's own: a chat template or an adapter on the disk can be broken.
        """
        arguments = _without_path(self._arguments)
        await find("init_app_state")(self._client, self.state, arguments, self._tasks)
        renderer = self._client.renderer
        if executor := getattr(renderer, "_executor", None):
            keep_a_thread_free(executor, self._client.model_config.renderer_num_workers)
        Turns(self._client)
        keep_what_was_written(getattr(self.state, "anthropic_serving_messages", None))

    def keys(self, path: str) -> frozenset[str] | None:
        """See ``Engine.keys``."""
        return self._keys.get(path)

    @property
    def schema(self) -> dict[str, Any]:
        """The server's OpenAPI document."""
        with self._describing:
            document: dict[str, Any] = self._app.openapi()
        return document

    async def call(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        request_id: str,
        usage: Usage | None = None,
        shape: Shape = NONE,
    ) -> AsyncGenerator[asgi.Head | bytes, None]:
        """See ``Engine.call``."""
        try:
            shows = False
            if body is not None:
                body = bounded(self._client, body, shape)
                body, shows = await self.media.inlined(body, shape.texts)
            with translated(self._client, shows_media=shows):
                if shape.items:
                    check_items(body or {})
                check_bad_words((body or {}).get("bad_words"), self._client.renderer.tokenizer)
                data = b"" if body is None else _encoded(body)
                method = "GET" if body is None else "POST"
                request = asgi.Request(method, path, data, request_id)
                state: dict[str, Any] = {}
                async with contextlib.aclosing(asgi.call(self._app, request, state)) as parts:
                    async for part in parts:
                        # vLLM's server would answer 500, or end a stream with an error event.
                        # What is only read, such as the models, needs no core.
                        if self._client.errored and body is not None:
                            raise EngineDead
                        yield part
                # Notes for the middleware of vLLM's app: they count the tokens of a stream whose
                # caller did not ask for them, too.
                noted: RequestMetadata | None = state.get("request_metadata")
                if usage is not None and noted and (counted := noted.final_usage_info):
                    usage.prompt_tokens = counted.prompt_tokens
                    usage.output_tokens = counted.completion_tokens
        except RefusedByEngine as refused:
            prompt = body if body and not shape.items else {}
            raise await self.measured(refused, prompt) from refused

    async def measured(self, refused: RefusedByEngine, body: Mapping[str, Any]) -> WorkerError:
        """Return the refusal of a prompt that is too long with its number of tokens.

        vLLM does not count them all. Any other refusal is returned unchanged, and that of a text
        that takes long to count.
        """
        if refused.param not in TOO_LONG or is_long.get():
            return refused
        prompt = {"prompt": body.get("prompt", body.get("input"))}
        if body.get("messages") is not None:
            prompt = {key: body[key] for key in ("messages", "tools") if body.get(key) is not None}
        is_text = "messages" in prompt or isinstance(prompt["prompt"], str)
        if not is_text:
            return refused
        if find_media(prompt, RAW.texts):
            # A raw job's are as its caller sent them: vLLM would fetch them itself.
            return refused
        request = asgi.Request("POST", "/tokenize", _encoded(prompt))
        async with contextlib.aclosing(asgi.call(self._app, request)) as parts:
            answer = json.loads(b"".join([part async for part in parts if isinstance(part, bytes)]))
        return RefusedByEngine(
            f"The prompt has {answer['count']:,} tokens. Together with its answer, at most "
            f"{answer['max_model_len']:,} fit this model's context: send a shorter prompt.",
            status=refused.status,
            param=refused.param,
        )


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Encode a body as JSON.

    Raises:
        ValueError: it holds half of a surrogate pair or NaN.
        OverflowError: an integer has more than 64 bits.
    """
    # vLLM would notice too late that its core can't be sent a value.
    msgspec.msgpack.encode(body)
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def _body_keys(app: Any) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each path of a FastAPI app with the keys that its body can have."""
    for route in app.routes:
        if hasattr(route, "body_field"):
            annotation = route.body_field and route.body_field.field_info.annotation
            yield route.path, frozenset(_keys(annotation))


def _keys(annotation: Any) -> Iterator[str]:
    if typing.get_origin(annotation) in (typing.Annotated, typing.Union, types.UnionType):
        for alternative in typing.get_args(annotation):
            yield from _keys(alternative)
    for name, field in getattr(annotation, "model_fields", {}).items():
        yield name
        if field.alias:
            yield field.alias


def _let_errors_out(app: Any) -> None:
    """Remove an app's exception handlers: exceptions are translated as on the raw path.

    Those of the framework's own HTTP errors stay.
    """
    kept = {
        error: handler
        for error, handler in app.exception_handlers.items()
        if isinstance(error, type) and issubclass(error, HTTPException)
    }
    EXCEPTION_HANDLERS.replace(app, kept)
    # vLLM has built the middleware stack already, with the handlers of that time.
    app.middleware_stack = app.build_middleware_stack()


def _without_path(arguments: Namespace) -> Namespace:
    """Replace a local directory's path, which /v1/models would show, by the model's name."""
    if not Path(arguments.model).is_dir():
        return arguments
    return Namespace(**vars(arguments) | {"model": arguments.served_model_name[-1]})


def keep_what_was_written(messages: Any) -> None:
    """Let Anthropic's API answer as text, not as a call, what is no input of a tool.

    There an input is an object, and vLLM's server raises if a model has written something else, or
    was cut while it wrote, as if the request were wrong. A call with an empty input would be worse:
    it may be run.

    Args:
        messages: vLLM's ``AnthropicServingMessages``; None if the model does not generate.
    """
    if messages is None:
        return

    def converted(answer: Any) -> Any:
        choice = answer.choices[0]
        message = choice.message
        wrong = [call for call in message.tool_calls if not _is_object(call.function.arguments)]
        if wrong:
            log.warning("the model wrote %d calls of tools whose input is no object", len(wrong))
            message.tool_calls = [call for call in message.tool_calls if call not in wrong]
            written = [call.function.arguments for call in wrong]
            message.content = "\n".join(filter(None, [message.content, *written]))
            if choice.finish_reason == "tool_calls" and not message.tool_calls:
                choice.finish_reason = "stop"
        return convert(answer)

    convert = TO_MESSAGES.replace(messages, converted)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
