"""vLLM's own server: its FastAPI app, built around a client and called in this process."""

import contextlib
import json
import threading
import types
import typing
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import REGISTRY
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from worker import asgi
from worker.chunking import current_schedule
from worker.engine.run import corrections
from worker.engine.run.requests.due_outputs import read_streams_when_due, separate_outputs
from worker.engine.run.requests.limits import check_bad_words, check_items, limit_texts
from worker.engine.run.requests.long_requests import (
    LongRequestQueue,
    is_long,
    reserve_thread_for_short_texts,
)
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.patches import EXCEPTION_HANDLERS, OUTPUT_LIMIT, SANITIZE
from worker.engine.seam.protocols import Client, RequestMetadata
from worker.engine.seam.translation import translate_errors
from worker.errors import EngineDead, RefusedByEngine, WorkerError
from worker.limits.inputs import EMPTY_SHAPE, RAW_SHAPE, RENDERED_KEYS, BodyShape
from worker.media.loader import MediaLoader
from worker.media.walker import find_media
from worker.messages import mend_text
from worker.record import Usage

# Paths of the most frequent requests.
FIRST_PATHS = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
# Prefix of the metrics of the app's middleware.
_HTTP_METRICS_PREFIX = "http_"
# Values of ``param`` in vLLM's refusal of a prompt that is too long.
TOO_LONG_PARAMS = {"input_tokens", "input_text"}


class VllmServer:
    """vLLM's server for one client. Use on the engine's loop.

    ``media`` is the loader that replaces the media in requests with media that vLLM may read.
    """

    def __init__(
        self, client: Client, arguments: Namespace, tasks: tuple[str, ...], media: MediaLoader
    ) -> None:
        self._client = client
        self.media = media
        self._arguments = arguments
        self._tasks = tasks
        # Maximum tokens of a choice; None if only the context limits them.
        self.max_output_tokens: int | None = None
        self._app = import_from_vllm("build_app")(arguments, tasks, client.model_config)
        read_streams_when_due()
        corrections.remember_token_texts()
        SANITIZE.replace_in_modules(corrections.sanitize_message)
        corrections.raise_errors_of_messages()
        corrections.send_withheld_text()
        _shorten_path_of_requests(self._app)
        corrections.silence_refusals()
        # The keys that a body can have, by the paths of the app.
        self._keys = {
            route.path: frozenset(
                _pydantic_keys(route.body_field and route.body_field.field_info.annotation)
            )
            for route in self._app.routes
            if hasattr(route, "body_field")
        }
        # Building the OpenAPI document takes a second or two: don't do it concurrently.
        self._schema_lock = threading.Lock()

    @property
    def state(self) -> Any:
        """The state of vLLM's app, with the objects that its routes use."""
        return self._app.state

    async def build_app_state(self, max_output_tokens: int | None) -> None:
        """Build the app's state, and patch its objects and the client's.

        ``max_output_tokens`` is MAX_OUTPUT_TOKENS, of a choice. Errors are vLLM's own, for example
        for a broken chat template or adapter on the disk.
        """
        arguments = _hide_model_path(self._arguments)
        await import_from_vllm("init_app_state")(self._client, self.state, arguments, self._tasks)
        renderer = self._client.renderer
        if executor := getattr(renderer, "_executor", None):
            reserve_thread_for_short_texts(executor, self._client.model_config.renderer_num_workers)
        LongRequestQueue(self._client)
        # None if the model does not generate.
        if messages := getattr(self.state, "anthropic_serving_messages", None):
            corrections.keep_invalid_tool_input(messages)
        self._limit_output_tokens(max_output_tokens)

    def _limit_output_tokens(self, maximum: int | None) -> None:
        """Limit the tokens of each choice on all routes.

        vLLM has a limit of its own, ``max_new_tokens`` of OVERRIDE_GENERATION_CONFIG, and a copy of
        it in each object that generates. The lower limit applies.
        """
        self.max_output_tokens = maximum
        for serving in self.state._state.values():
            if hasattr(serving, OUTPUT_LIMIT.name):
                limits = (maximum, getattr(serving, OUTPUT_LIMIT.name))
                limit = min((one for one in limits if one is not None), default=None)
                OUTPUT_LIMIT.replace(serving, limit)
                self.max_output_tokens = limit

    def body_keys(self, path: str) -> frozenset[str] | None:
        """See ``Engine.body_keys``."""
        return self._keys.get(path)

    @property
    def openapi_schema(self) -> dict[str, Any]:
        with self._schema_lock:
            document: dict[str, Any] = self._app.openapi()
        return document

    async def call(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        request_id: str,
        usage: Usage | None = None,
        shape: BodyShape = EMPTY_SHAPE,
        take_part: Callable[[bytes, bool], bool] = asgi.take_no_part,
    ) -> AsyncGenerator[asgi.ResponseHead | bytes, None]:
        """See ``Engine.call``."""
        try:
            has_media = False
            if body is not None:
                body = limit_texts(self._client, body, shape)
                body, has_media = await self.media.inline_media(body, shape.text_keys)
            with translate_errors(self._client, has_media=has_media):
                if shape.accepts_items:
                    check_items(body or {})
                check_bad_words((body or {}).get("bad_words"), self._client.renderer.tokenizer)
                if schedule := current_schedule.get(None):
                    separate_outputs(schedule, body or {}, self._arguments)
                data = b"" if body is None else _encode_json(body)
                method = "GET" if body is None else "POST"
                request = asgi.Request(method, path, data, request_id)
                state: dict[str, Any] = {}
                parts = asgi.call_app(self._app, request, state, take_part)
                async with contextlib.aclosing(parts):
                    async for part in parts:
                        # After the core's death, vLLM's server would respond with status 500, or
                        # an error event in a stream. Requests without a body need no core.
                        if self._client.errored and body is not None:
                            raise EngineDead
                        yield part
                # vLLM's routes store this metadata for the app's middleware. It contains the token
                # counts, also those of a stream whose caller did not request the usage.
                metadata: RequestMetadata | None = state.get("request_metadata")
                if usage is not None and metadata and (final_usage := metadata.final_usage_info):
                    usage.prompt_tokens = final_usage.prompt_tokens
                    usage.output_tokens = final_usage.completion_tokens
        except RefusedByEngine as refused:
            _name_chosen_tool(refused, body or {})
            # The route that counts tokens reads neither items nor Anthropic's blocks.
            is_countable = not (shape.accepts_items or "system" in shape.text_keys)
            prompt = body if body and is_countable else {}
            raise await self.add_token_count_to_refusal(refused, prompt) from refused

    async def add_token_count_to_refusal(
        self, error: RefusedByEngine, body: Mapping[str, Any]
    ) -> WorkerError:
        """Return the refusal of a prompt that is too long, with the prompt's number of tokens.

        vLLM's own message lacks the exact number. All other refusals are returned unchanged, also
        those of prompts that are not text, that contain media, or that take long to count.
        """
        if error.param not in TOO_LONG_PARAMS or is_long.get():
            return error
        prompt = {"prompt": body.get("prompt", body.get("input"))}
        if body.get("messages") is not None:
            prompt = {key: body[key] for key in ("messages", "tools") if body.get(key) is not None}
        is_text = "messages" in prompt or isinstance(prompt["prompt"], str)
        if not is_text:
            return error
        if find_media(prompt, RAW_SHAPE.text_keys):
            # To count a raw job's media, vLLM would fetch them without the worker's checks.
            return error
        request = asgi.Request("POST", "/tokenize", _encode_json(prompt))
        async with contextlib.aclosing(asgi.call_app(self._app, request)) as parts:
            answer = json.loads(b"".join([part async for part in parts if isinstance(part, bytes)]))
        return RefusedByEngine(
            f"The prompt has {answer['count']:,} tokens. Together with its answer, at most "
            f"{answer['max_model_len']:,} fit this model's context: send a shorter prompt.",
            status=error.status,
            param=error.param,
        )


def _name_chosen_tool(refused: RefusedByEngine, body: Mapping[str, Any]) -> None:
    """Add the tool that a request names to the refusal of its schema, which has no name itself."""
    choice = body.get("tool_choice")
    start = "structured output: "
    has_name = refused.message.startswith(f"{start}tool ")
    if refused.param == "structured_outputs" and isinstance(choice, dict) and not has_name:
        function = choice.get("function")
        name = (function if isinstance(function, dict) else choice).get("name")
        refused.message = refused.message.replace(start, f"{start}tool {name!r}: ", 1)


def _encode_json(body: Mapping[str, Any]) -> bytes:
    """Encode a body as JSON; raise ``ValueError`` or ``OverflowError`` for what JSON can't have."""
    # Try to encode: vLLM would notice too late that a value can't be sent to its core.
    msgspec.msgpack.encode({key: body[key] for key in body.keys() - RENDERED_KEYS})
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return mend_text(text).encode()


def _pydantic_keys(annotation: Any) -> Iterator[str]:
    if typing.get_origin(annotation) in (typing.Annotated, typing.Union, types.UnionType):
        for alternative in typing.get_args(annotation):
            yield from _pydantic_keys(alternative)
    for name, field in getattr(annotation, "model_fields", {}).items():
        yield name
        if field.alias:
            yield field.alias


def _shorten_path_of_requests(app: Any) -> None:
    """Remove the parts of an app that calls in this process don't need, and sort its routes.

    Without the app's exception handlers, exceptions are translated as for raw jobs. Handlers for
    the framework's own HTTP errors stay. No call has an origin, so the middleware for browsers does
    nothing but pass on each event. The worker's own metrics replace those of the middleware.
    """
    http_handlers = {
        error: handler
        for error, handler in app.exception_handlers.items()
        if isinstance(error, type) and issubclass(error, HTTPException)
    }
    EXCEPTION_HANDLERS.replace(app, http_handlers)
    unused = (CORSMiddleware, PrometheusInstrumentatorMiddleware)
    app.user_middleware = [each for each in app.user_middleware if each.cls not in unused]
    # vLLM has already built the middleware stack, with the previous handlers.
    app.middleware_stack = app.build_middleware_stack()
    # The middleware's metrics would stay 0.
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(_HTTP_METRICS_PREFIX):
            REGISTRY.unregister(collector)
    # Each request tries the patterns of all routes before its own.
    app.router.routes.sort(key=lambda route: getattr(route, "path", "") not in FIRST_PATHS)


def _hide_model_path(arguments: Namespace) -> Namespace:
    """Return arguments with a local model's name for its path, which /v1/models would show."""
    if not Path(arguments.model).is_dir():
        return arguments
    return Namespace(**vars(arguments) | {"model": arguments.served_model_name[-1]})
