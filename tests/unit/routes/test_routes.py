"""Routes: the answers that they make from jobs."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.types import Message
from support.engine.scripted import (
    ScriptedEngine,
    broken_stream,
    chat,
    events_in,
    failure,
    raw,
    replying,
    settings,
    tokens,
    yields_of,
)

from worker.engine import Delta
from worker.errors import InvalidInput, UnknownRoute
from worker.job import parse_input
from worker.routes import answer
from worker.routes.answer import Answer, json_size
from worker.routes.resources import Resources

PROMPT = "my secret prompt"


AnswerTo = Callable[[Any], Answer[Any]]


@pytest.fixture
def answer_to() -> Iterator[AnswerTo]:
    """Return a function that makes answers, which are not started."""
    with ScriptedEngine() as engine:
        resources = Resources.of(engine.engines, settings())
        yield lambda payload: answer(parse_input(payload), "job-1", resources, 600)
        assert engine.asked == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("form", [raw, chat])
def test_an_answer_streams_if_the_job_does(form: Any, stream: bool, answer_to: AnswerTo) -> None:
    assert answer_to(form(stream=stream)).stream is stream


# The second is nearly one of the worker's own, which does the opposite.
@pytest.mark.parametrize("path", ["/v1/speech", "/v1/load_lora_adapter"])
def test_a_route_that_is_not_served_is_refused_before_the_engine_is_asked(
    path: str, answer_to: AnswerTo
) -> None:
    with pytest.raises(UnknownRoute) as caught:
        answer_to({"openai_route": path, "openai_input": {"input": PROMPT}})
    message = caught.value.message
    assert message.startswith(
        f"There is no route {path!r}; this worker serves POST /v1/chat/completions, "
    )
    assert "GET /v1/models, GET /v1/models/{model}, " in message


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("/v1/embedings", "POST /v1/embeddings"),
        ("/chat/completion", "POST /v1/chat/completions"),
        ("/v1/message", "POST /v1/messages"),
    ],
)
def test_a_route_that_is_nearly_one_is_told_by_its_name(
    wrong: str, meant: str, answer_to: AnswerTo
) -> None:
    with pytest.raises(UnknownRoute) as caught:
        answer_to({"openai_route": wrong, "openai_input": {"input": PROMPT}})
    assert caught.value.message == f"There is no route {wrong!r}: did you mean {meant}?"


@pytest.mark.parametrize("n", [257, 10**9])
def test_more_choices_than_a_yield_has_places_for_are_refused(n: int, answer_to: AnswerTo) -> None:
    with pytest.raises(InvalidInput) as caught:
        answer_to(raw(stream=True, sampling_params={"n": n}))
    assert (caught.value.message, caught.value.param) == (
        "sampling_params.n: Input should be less than or equal to 256",
        "n",
    )


def test_the_most_choices_allowed_fit_one_yield_with_room_for_their_text(
    answer_to: AnswerTo,
) -> None:
    reply = answer_to(raw(stream=True, sampling_params={"n": 256}))
    ends = [Delta(index, "", 0, 3, "repetition", "x" * 30) for index in range(256)]
    assert json_size(reply.render(ends)) < 50_000


async def test_a_token_counts_for_a_chunk_and_a_bare_end_does_not() -> None:
    one, end, two = (
        tokens("a", "b", finish=None),
        Delta(0, "", 0, 3, "stop"),
        tokens(*"xyz", index=1),
    )
    with ScriptedEngine(*one, end, *two) as engine:
        payload = raw(stream=True, sampling_params={"n": 2}, max_batch_delay_ms=0)
        yields = await yields_of(engine, payload)
    assert [[choice["tokens"] for choice in chunk["choices"]] for chunk in yields] == [
        [["a"], []],
        [["b", ""], ["x", "y"]],
        [[], ["z"]],
    ]


@pytest.mark.parametrize(
    ("value", "size"),
    [("a", 5), ("é", 6), ("😀", 8), ('"', 6), ("\n", 6), ({"a": [1, 2]}, 15), ([], 4)],
)
def test_sizes_are_those_of_the_post_and_its_comma(value: Any, size: int) -> None:
    assert json_size(value) == size


def test_half_a_surrogate_pair_has_a_size() -> None:
    assert json_size("\ud83d") >= 5


def test_the_pieces_of_a_yield_are_never_larger_than_their_sizes_say(answer_to: AnswerTo) -> None:
    reply = answer_to(raw(stream=True))
    deltas = [Delta(0, text, 1, 3) for text in ["a", "é", "", '"', "\n"] * 2000]
    envelope = json_size(reply.render([Delta(0, "", 0, 3)]))
    texts = sum(json_size(delta.text) for delta in deltas)
    assert json_size(reply.render(deltas)) <= texts + envelope + 10


# Messages of vLLM, without the refused value:


def refused(message: str, **error: Any) -> str:
    return json.dumps({"error": {"message": message, "code": 400, **error}})


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("too long (parameter=max_tokens, value=99)", "too long"),
        (f"no such role (parameter=messages, value={PROMPT})", "no such role"),
        (f"bad (parameter=body.messages, value=[{PROMPT}\n(x)])", "bad"),
        ("bad (parameter=stop)", "bad"),
        (f"wrong [type=string_type, input_value='{PROMPT}', input_type=str]", "wrong"),
        ("wrong\n    For further information visit https://errors.pydantic.dev/2/v/x", "wrong"),
        (f"not a tool: {{'prompt': '{PROMPT}'}}", "not a tool"),
        ("a plain message (with brackets)", "a plain message (with brackets)"),
    ],
)
async def test_a_refusal_does_not_repeat_the_refused_value(message: str, kept: str) -> None:
    with ScriptedEngine(app=replying(refused(message, param="p"), status=400)) as engine:
        error = failure(await yields_of(engine, chat(stream=False)))
    assert (error["message"], error["param"], error["code"]) == (kept, "p", 400)


async def test_a_refusal_in_a_stream_does_not_repeat_the_refused_value() -> None:
    said = 'data: {"choices":[]}\n\n'
    error = f"data: {refused(f'bad (parameter=x, value={PROMPT})')}\n\ndata: [DONE]\n\n"
    app = replying(said + error, media_type="text/event-stream")
    with ScriptedEngine(app=app) as engine:
        yields = await yields_of(engine, chat(stream=True))
    begun, failed_with = broken_stream(yields)
    (_, broken, done) = events_in("".join(begun))
    assert (broken["error"]["message"], done) == ("bad", "[DONE]")
    assert (broken["error"]["type"], broken["error"]["request_id"]) == ("BadRequestError", "job-1")
    assert failed_with == broken["error"]


async def test_a_stream_whose_first_event_is_an_error_fails_the_job() -> None:
    app = replying(f"data: {refused('no')}\n\n", media_type="text/event-stream")
    with ScriptedEngine(app=app) as engine:
        yields = await yields_of(engine, chat(stream=True))
    assert len(yields) == 1
    assert (failure(yields)["message"], failure(yields)["code"]) == ("no", 400)


async def test_an_error_that_is_not_json_is_a_defect() -> None:
    app = replying(f"Internal Server Error: {PROMPT}", status=500, media_type="text/plain")
    with ScriptedEngine(app=app) as engine:
        (chunk,) = await yields_of(engine, chat(stream=False))
    assert failure([chunk])["code"] == 500
    assert PROMPT not in chunk["error"]


@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream"])
async def test_a_dead_engine_is_a_503_whatever_vllms_server_answers(media_type: str) -> None:
    error = refused("EngineCore encountered an issue")
    stream = media_type == "text/event-stream"
    body = f"data: {error}\n\n" if stream else error
    app = replying(body, status=500, media_type=media_type)
    with ScriptedEngine(app=app) as engine:
        engine.mark_dead()
        failed = failure(await yields_of(engine, chat(stream=stream)))
    assert (failed["code"], failed["retryable"]) == (503, True)
    assert "EngineCore" not in failed["message"]


@pytest.mark.parametrize(
    ("route", "sent"), [("/version", b""), ("/v1/completions", b'{"model": "demo", "a": 1}')]
)
async def test_only_a_post_carries_its_body(route: str, sent: bytes) -> None:
    bodies: list[bytes] = []
    reply = replying("{}")

    async def app(scope: Message, receive: Any, send: Any) -> None:
        message = await receive()
        bodies.append(message["body"])

        async def again() -> Message:
            return {**message}

        await reply(scope, again, send)

    with ScriptedEngine(app=app) as engine:
        await yields_of(engine, {"route": route, "body": {"model": "demo", "a": 1}})
    assert bodies == [sent]
