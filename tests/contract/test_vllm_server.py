"""Tests of vLLM's server as the worker builds and calls it, without an engine."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Field, create_model
from starlette.types import Message
from support.engine.scripted import static_app
from support.media import data_url
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError

from worker.asgi import ResponseHead
from worker.engine.options import Options
from worker.engine.run import corrections
from worker.engine.run import server as module
from worker.engine.run.sampling import KNOWN_KEYS, VLLM_FIELDS
from worker.engine.run.server import VllmServer
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.patches import SANITIZE
from worker.engine.seam.translation import translate_error
from worker.errors import EngineDead, InvalidInput, RefusedByEngine
from worker.job import PromptListJob, RawJob
from worker.job.sampling_params import BEAM_SEARCH_IGNORES, BEAM_SEARCH_USES, PARAMETERS
from worker.limits.inputs import EMPTY_SHAPE
from worker.media.contents import MediaLimits
from worker.media.fetcher import WebFetcher
from worker.media.loader import MediaLoader
from worker.record import Usage
from worker.routes.vllm import ROUTES

CHAT = "/v1/chat/completions"
TOKENIZER = SimpleNamespace(max_chars_per_token=10, truncation_side="right")
RENDERER = SimpleNamespace(tokenizer=TOKENIZER)
CLIENT: Any = SimpleNamespace(model_config=None, errored=False, renderer=RENDERER)


@pytest.fixture(scope="module")
def module_server() -> VllmServer:
    """Create the server of a model that generates text."""
    arguments = Options().parse_engine_settings({"MODEL": "org/name"}).arguments.vllm_args
    media = MediaLoader(MediaLimits(), WebFetcher(), ["image"])
    server = VllmServer(CLIENT, arguments, ("generate",), media)
    CLIENT.model_config = SimpleNamespace(max_model_len=10_000)
    return server


@pytest.fixture
def vllm_server(module_server: VllmServer) -> Iterator[VllmServer]:
    """Return the module's server, and restore vLLM's app after the test."""
    app = module_server._app
    yield module_server
    module_server._app, CLIENT.errored = app, False


async def call_server(server: VllmServer, path: str, body: Mapping[str, Any] | None) -> list[Any]:
    shape = next((row.shape for row in ROUTES if row.path == path), EMPTY_SHAPE)
    return [part async for part in server.call(path, body, "job-1", shape=shape)]


@pytest.mark.parametrize("info", [None, SimpleNamespace(prompt_tokens=3, completion_tokens=2)])
async def test_the_token_counts_of_a_route_become_the_usage(
    vllm_server: VllmServer, info: Any
) -> None:
    async def app(scope: Message, receive: Any, send: Any) -> None:
        scope["state"]["request_metadata"] = SimpleNamespace(final_usage_info=info)
        await static_app("{}")(scope, receive, send)

    vllm_server._app, usage = app, Usage()
    assert [part async for part in vllm_server.call(CHAT, {}, "job-1", usage)]
    assert usage == (Usage(3, 2) if info else Usage())


# The keys of its routes:


def test_the_keys_of_a_route_are_the_fields_of_its_body(module_server: VllmServer) -> None:
    chat = module_server.body_keys(CHAT)
    assert chat is not None
    assert {"messages", "n", "temperature", "structured_outputs", "use_beam_search"} <= chat
    assert not chat & {"prompt", "best_of", "guided_json", "input"}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_the_worker_knows_for_every_sampling_parameter_whether_beam_search_uses_it(
    module_server: VllmServer, path: str
) -> None:
    parameters = (module_server.body_keys(path) or frozenset()) & VLLM_FIELDS
    # vLLM's server forwards watermarking, and the last parameter is only ever switched off.
    others = {"n", "watermarking", "spaces_between_special_tokens"}
    assert parameters - others <= BEAM_SEARCH_USES | BEAM_SEARCH_IGNORES.keys()
    assert not BEAM_SEARCH_USES & BEAM_SEARCH_IGNORES.keys()


def test_every_sampling_parameter_may_be_set_next_to_sampling_params() -> None:
    assert KNOWN_KEYS <= PARAMETERS
    # Each key of a job has one meaning.
    assert not PARAMETERS & (RawJob.model_fields.keys() | PromptListJob.model_fields.keys())


def test_routes_may_have_several_bodies_none_or_be_absent(module_server: VllmServer) -> None:
    assert {"prompt", "messages", "model"} <= (module_server.body_keys("/tokenize") or set())
    assert module_server.body_keys("/version") == frozenset()
    assert module_server.body_keys("/v1/embeddings") is None
    # A key may have two names.
    renamed = create_model("Renamed", b=(int, Field(alias="bee")))
    assert {*module._pydantic_keys(renamed)} == {"b", "bee"}


def test_the_openapi_document_describes_known_routes(module_server: VllmServer) -> None:
    document = module_server.openapi_schema
    assert "post" in document["paths"][CHAT]
    described = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert set(described) <= (module_server.body_keys(CHAT) or set())


def test_a_local_model_is_listed_by_the_name_of_its_directory(tmp_path: Path) -> None:
    values = {"MODEL": str(tmp_path), "SERVED_MODEL_NAME": "a"}
    arguments = Options().parse_engine_settings(values).arguments.vllm_args
    assert module._hide_model_path(arguments).model == tmp_path.name
    arguments = Options().parse_engine_settings(values | {"MODEL": "org/name"}).arguments.vllm_args
    assert module._hide_model_path(arguments) is arguments


@pytest.mark.parametrize(
    ("theirs", "ours", "limit"),
    [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (9, 7, 7)],
)
def test_the_lower_limit_of_output_tokens_applies(
    module_server: VllmServer, theirs: int | None, ours: int | None, limit: int | None
) -> None:
    serving = SimpleNamespace(override_max_tokens=theirs)
    module_server.state.openai_serving_completion = serving
    try:
        module_server._limit_output_tokens(ours)
    finally:
        del module_server.state.openai_serving_completion
    assert (serving.override_max_tokens, module_server.max_output_tokens) == (limit, limit)


# Calls:


async def test_an_error_in_vllms_app_is_a_worker_error(module_server: VllmServer) -> None:
    with pytest.raises(InvalidInput) as caught:
        await call_server(module_server, CHAT, {"model": "x"})
    assert (caught.value.message, caught.value.param) == ("messages: Field required", "messages")


async def test_a_web_framework_error_is_a_response(module_server: VllmServer) -> None:
    head, body = await call_server(module_server, "/nowhere", None)
    assert head == ResponseHead(404, "application/json")
    assert json.loads(body) == {"detail": "Not Found"}
    assert (await call_server(module_server, CHAT, None))[0].status == 405  # a GET request


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("\ud83d", "A text contains half of a surrogate pair, which is not a character."),
        (float("nan"), "Out of range float values are not JSON compliant"),
        (2**64, "An integer has more than 64 bits."),
    ],
    ids=["surrogate", "nan", "integer"],
)
async def test_values_that_json_or_the_core_cannot_represent_are_refused(
    module_server: VllmServer, value: Any, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await call_server(module_server, "/tokenize", {"prompt": value})
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    "app",
    [
        static_app("{}"),
        static_app('{"error": {"message": "no"}}', status=500),
        static_app('data: {"error": {"message": "no"}}\n\n', media_type="text/event-stream"),
    ],
    ids=["answer", "error", "stream"],
)
async def test_every_response_of_a_dead_engine_raises_engine_dead(
    vllm_server: VllmServer, app: Any
) -> None:
    vllm_server._app, CLIENT.errored = app, True
    with pytest.raises(EngineDead):
        await call_server(vllm_server, "/v1/completions", {})


async def test_a_death_during_a_stream_raises_engine_dead(vllm_server: VllmServer) -> None:
    vllm_server._app = static_app("data: 1\n\n", "data: 2\n\n", media_type="text/event-stream")
    parts = vllm_server.call("/v1/completions", {}, "job-1")
    assert [await anext(parts), await anext(parts)][1] == b"data: 1\n\n"
    CLIENT.errored = True
    with pytest.raises(EngineDead):
        await anext(parts)


async def test_an_image_that_cannot_be_loaded_is_invalid_input(vllm_server: VllmServer) -> None:
    async def app(*_: Any) -> None:
        raise OSError("no image " + "x" * 500)

    vllm_server._app = app
    pixel = {"type": "image_url", "image_url": {"url": data_url(1, 1)}}
    with pytest.raises(InvalidInput) as caught:
        await call_server(vllm_server, CHAT, {"messages": [{"role": "user", "content": [pixel]}]})
    message = "A part of the messages could not be loaded: no image "
    assert caught.value.message == message + "x" * (200 - len("no image "))
    for path, body in [
        (CHAT, {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/version", None),
    ]:
        with pytest.raises(OSError, match="no image"):
            await call_server(vllm_server, path, body)


# A prompt that is too long:


class TooLongPromptApp:
    """An app that refuses every prompt as too long, and stores the bodies of tokenize requests."""

    def __init__(self, param: str = "input_tokens") -> None:
        self.param = param
        self.counted: list[Any] = []

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["path"] != "/tokenize":
            raise VLLMValidationError("too long", parameter=self.param)
        self.counted.append(json.loads((await receive())["body"]))

        async def receive_nothing() -> Message:
            return {}

        body = json.dumps({"count": 5000, "max_model_len": 1024, "tokens": []})
        await static_app(body[:9], body[9:])(scope, receive_nothing, send)


async def refusal_message(server: VllmServer, app: Any, path: str, body: Any) -> str:
    server._app = app
    with pytest.raises(RefusedByEngine) as caught:
        await call_server(server, path, body)
    assert (caught.value.status, caught.value.param) == (400, app.param)
    return caught.value.message


@pytest.mark.parametrize(
    ("param", "body", "counted"),
    [
        ("input_tokens", {"prompt": "a", "n": 2}, {"prompt": "a"}),
        ("input_text", {"input": "a", "messages": None}, {"prompt": "a"}),
        ("input_text", {"messages": [1], "tools": [2]}, {"messages": [1], "tools": [2]}),
        ("input_tokens", {"messages": [1], "tools": None, "model": "m"}, {"messages": [1]}),
    ],
)
async def test_the_refusal_of_a_too_long_prompt_states_its_length(
    vllm_server: VllmServer, param: str, body: Any, counted: Any
) -> None:
    app = TooLongPromptApp(param)
    assert await refusal_message(vllm_server, app, "/v1/completions", body) == (
        "The prompt has 5,000 tokens. Together with its answer, at most 1,024 fit this model's "
        "context: send a shorter prompt."
    )
    assert app.counted == [counted]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [1]}, "max_tokens"),
        ("/v1/completions", {"prompt": [1, 2]}, "input_tokens"),
        ("/v1/completions", {"prompt": "é" * 64_001}, "input_tokens"),
        ("/v1/responses", {"input": "a"}, "input_tokens"),
        ("/version", None, "input_tokens"),
    ],
    ids=["other", "ids", "longer", "responses", "get"],
)
async def test_other_refusals_count_no_tokens(
    vllm_server: VllmServer, path: str, body: Any, param: str
) -> None:
    app = TooLongPromptApp(param)
    assert (await refusal_message(vllm_server, app, path, body), app.counted) == ("too long", [])


# Replaced parts of vLLM's messages and log:


def test_the_refusal_of_an_empty_prompt_does_not_offer_prompt_embeddings() -> None:
    with pytest.raises(VLLMValidationError) as refused:
        CompletionRequest(prompt="")
    error = translate_error(refused.value)
    assert error is not None
    assert (error.status, error.param) == (400, "prompt")
    assert error.message == (
        "prompt: a text that is not empty, a list of token ids, or a list of either"
    )


@pytest.mark.parametrize(
    ("error", "defect"),
    [
        (KeyError("x"), True),
        (asyncio.CancelledError(), True),
        (VLLMValidationError("x"), False),
        (ValueError("x"), False),
    ],
    ids=repr,
)
def test_a_refusal_is_not_logged_with_a_traceback(error: BaseException, defect: bool) -> None:
    log = logging.getLogger("vllm.entrypoints.anthropic.api_router")
    with_traceback = (type(error), error, None)
    for arguments, exc_info in [((), with_traceback), (("a", error), None)]:
        record = log.makeRecord(log.name, logging.ERROR, "", 0, "x", arguments, exc_info)
        assert corrections.is_loggable(record) is defect


def test_error_responses_and_lines_that_quote_messages_are_not_logged() -> None:
    answer = import_from_vllm("ErrorResponse")(error={"message": "a", "type": "b", "code": 400})
    quoting = "vllm.renderers.chat_utils"
    rows = [
        ("vllm.a", logging.ERROR, {"a": ValueError("b")}, True),
        ("other", logging.ERROR, ValueError("a"), True),
        ("vllm.a", logging.ERROR, answer, False),
        ("vllm.a", logging.WARNING, "b", True),
        (quoting, logging.WARNING, "b", False),
        (f"{quoting}.chat_message", logging.WARNING, "b", False),
        (quoting, logging.ERROR, "b", True),
    ]
    for name, level, argument, logged in rows:
        record = logging.LogRecord(name, level, "", 0, "x %s", (argument,), None)
        assert corrections.is_loggable(record) is logged


def test_vllms_sanitize_function_is_replaced_in_every_module(module_server: VllmServer) -> None:
    """The original function takes minutes for a name of 40 KB."""
    assert module_server is not None
    name = SANITIZE.name
    modules = [module for path, module in sys.modules.items() if path.startswith("vllm.")]
    used = [vars(module)[name] for module in modules if name in vars(module)]
    assert len(used) > 1
    assert set(used) == {corrections.sanitize_message}
