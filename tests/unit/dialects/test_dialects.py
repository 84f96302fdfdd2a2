"""Which route of which model answers a job, and the sizes of what it yields."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, failure, raw, settings, yields_of
from support.processes.background import HUNG_S

from worker.dialects import answer, parse_input
from worker.engine import Delta, Model
from worker.errors import UnknownRoute
from worker.routes.answer import Answer, json_size
from worker.routes.lists import Room
from worker.routes.resources import Resources

EMBEDDINGS = "/v1/embeddings"
AnswerTo = Callable[[Any], Answer[Any]]


@pytest.fixture
def answer_to(engine: ScriptedEngine) -> Iterator[AnswerTo]:
    """Return a function that makes answers, which are not started."""
    resources = Resources(engine.engines, settings())
    yield lambda payload: answer(parse_input(payload), "job-1", resources, 600)
    assert engine.asked == []


# The second is nearly one of the worker's own, which does the opposite.
@pytest.mark.parametrize("path", ["/v1/speech", "/v1/load_lora_adapter", ""])
def test_a_route_that_is_not_served_is_refused_with_those_that_are(
    path: str, answer_to: AnswerTo
) -> None:
    with pytest.raises(UnknownRoute) as caught:
        answer_to({"openai_route": path, "openai_input": {"input": "Hi"}})
    served = "this worker serves POST /v1/chat/completions, "
    assert caught.value.message.startswith(f"There is no route {path!r}; {served}")
    assert "GET /v1/models, GET /v1/models/{model}, " in caught.value.message


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("/v1/embedings", "/v1/embeddings"), ("/chat/completion", "/v1/chat/completions")],
)
def test_the_nearest_route_is_suggested(wrong: str, meant: str, answer_to: AnswerTo) -> None:
    with pytest.raises(UnknownRoute) as caught:
        answer_to({"openai_route": wrong, "openai_input": {"input": "Hi"}})
    assert caught.value.message == f"There is no route {wrong!r}: did you mean POST {meant}?"


# Models that are asked for what they can't do:


def post(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": body}


@pytest.mark.usefixtures("embedder")
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        *(
            (
                post(route, model="org/minilm"),
                f"'minilm' embeds and can't answer {route}; demo can.",
            )
            for route in (CHAT, "/v1/messages")
        ),
        *(
            (
                {key: value, "model": "minilm"},
                "'minilm' embeds and can't answer prompts and messages; demo can.",
            )
            for key, value in {"prompt": "Hi", "prompts": ["Hi"]}.items()
        ),
        (
            post(EMBEDDINGS, model="demo", input="Hi"),
            f"'demo' generates text and can't answer {EMBEDDINGS}; minilm can.",
        ),
    ],
)
async def test_a_model_that_can_not_do_it_is_refused_naming_one_that_can(
    engine: ScriptedEngine, asked: dict[str, Any], message: str
) -> None:
    error = failure(await yields_of(engine, asked))
    assert (error["code"], error["param"], error["retryable"]) == (404, "model", False)
    assert (error["message"], engine.asked) == (message, [])


async def test_a_route_that_no_engine_has_is_refused_with_advice(
    engine: ScriptedEngine, request: pytest.FixtureRequest
) -> None:
    error = failure(await yields_of(engine, post(EMBEDDINGS)))
    assert error["code"] == 404
    assert error["message"].startswith(f"No model of this worker answers {EMBEDDINGS}: 'demo' gen")
    assert "set EMBEDDING_MODEL_NAME" in error["message"]
    request.getfixturevalue("embedder")
    error = failure(await yields_of(engine, post("/rerank")))
    assert error["message"].endswith(" answers /rerank: 'demo' generates text; 'minilm' embeds.")


async def test_a_pooling_model_is_not_advised_to_add_an_embedder(engine: ScriptedEngine) -> None:
    engine.model, engine.bodies = Model(("demo",), 512, "cpu", frozenset({"embed"})), {}
    error = failure(await yields_of(engine, post(CHAT)))
    assert error["message"] == f"No model of this worker answers {CHAT}: 'demo' embeds."


# Sizes:


def test_the_most_choices_fit_one_yield_with_room_for_their_text(answer_to: AnswerTo) -> None:
    reply = answer_to(raw(stream=True, sampling_params={"n": 256}))
    ends = [Delta(index, "", 0, 3, "repetition", "x" * 30) for index in range(256)]
    assert json_size(reply.render(ends)) < 50_000


def test_sizes_are_those_of_the_post_and_its_comma() -> None:
    values: dict[int, Any] = {5: "a", 6: "é", 8: "😀", 15: {"a": [1, 2]}, 4: []}
    assert {json_size(value): value for value in values.values()} == values
    assert [json_size(value) for value in ('"', "\n", "\ud83d")] == [6, 6, 5]


# Room for the choices of a list's items:


async def test_an_item_that_needs_more_than_there_is_waits_for_all() -> None:
    room = Room(2)
    async with room.taken(1):
        large = asyncio.create_task(room.taken(10).__aenter__())
        await asyncio.sleep(0.01)
        assert not large.done()
    async with asyncio.timeout(HUNG_S):
        await large


async def test_an_item_that_is_cancelled_while_it_waits_gives_its_part_back() -> None:
    room = Room(2)
    async with room.taken(1):
        waiting = asyncio.create_task(room.taken(2).__aenter__())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(HUNG_S), room.taken(2):
        pass
