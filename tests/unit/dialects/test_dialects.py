"""The choice of route and model for a job, and the sizes of yields."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, failure, raw_job, settings, yields_of
from support.processes.background import HUNG_S

from worker.dialects import make_answer, parse_input
from worker.engine import Delta, Model
from worker.errors import UnknownRoute
from worker.routes.answer import Answer, json_size
from worker.routes.generation import ChoiceLimiter
from worker.routes.resources import Resources

EMBEDDINGS = "/v1/embeddings"
CreateAnswer = Callable[[Any], Answer[Any]]


@pytest.fixture
def create_answer(engine: ScriptedEngine) -> Iterator[CreateAnswer]:
    """Return a function that creates the answer to a payload without starting it."""
    resources = Resources(engine.engines, settings())
    yield lambda payload: make_answer(parse_input(payload), "job-1", resources, 600)
    assert engine.requests == []


def refusal_message(path: str, create_answer: CreateAnswer) -> str:
    with pytest.raises(UnknownRoute) as caught:
        create_answer({"openai_route": path, "openai_input": {"input": "Hi"}})
    return caught.value.message


# /v1/load_lora_adapter resembles the worker's /v1/unload_lora_adapter, which does the opposite.
@pytest.mark.parametrize("path", ["/v1/speech", "/v1/load_lora_adapter", ""])
def test_the_refusal_of_an_unknown_route_names_the_list_of_routes(
    path: str, create_answer: CreateAnswer
) -> None:
    expected = f"There is no route {path!r}; GET /openapi.json lists all routes."
    assert refusal_message(path, create_answer) == expected


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/audio/transcriptions", "speech is not served"),
        ("/images/generations", "images are not generated"),
        ("/v1/messages/batches/b/results", "Anthropic's batches are not served; /v1/batches also"),
    ],
)
def test_the_refusal_of_a_part_of_an_api_that_is_not_served_has_the_reason(
    path: str, reason: str, create_answer: CreateAnswer
) -> None:
    message = refusal_message(path, create_answer)
    assert message.startswith(f"There is no route {path!r}: {reason}")


@pytest.mark.parametrize(("route", "expected"), [("messages/batches", ["type"]), ("x", [])])
async def test_errors_of_anthropics_unknown_routes_have_its_format(
    engine: ScriptedEngine, route: str, expected: list[str]
) -> None:
    (answer,) = await yields_of(engine, {"openai_route": f"/v1/{route}"})
    assert [key for key in json.loads(answer["error"]) if key != "error"] == expected


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [("/v1/embedings", "/v1/embeddings"), ("/chat/completion", "/v1/chat/completions")],
)
def test_the_nearest_route_is_suggested(
    path: str, suggestion: str, create_answer: CreateAnswer
) -> None:
    expected = f"There is no route {path!r}: did you mean POST {suggestion}?"
    assert refusal_message(path, create_answer) == expected


# Requests that a model can't answer:


def post(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": body}


@pytest.mark.usefixtures("embedder")
@pytest.mark.parametrize(
    ("payload", "message"),
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
async def test_a_request_that_its_model_cannot_answer_is_refused_with_a_model_that_can(
    engine: ScriptedEngine, payload: dict[str, Any], message: str
) -> None:
    error = failure(await yields_of(engine, payload))
    assert (error["code"], error["param"], error["retryable"]) == (404, "model", False)
    assert (error["message"], engine.requests) == (message, [])


async def test_a_route_that_no_model_answers_is_refused_with_advice(
    engine: ScriptedEngine, request: pytest.FixtureRequest
) -> None:
    error = failure(await yields_of(engine, post(EMBEDDINGS)))
    assert error["code"] == 404
    assert error["message"].startswith(f"No model of this worker answers {EMBEDDINGS}: 'demo' gen")
    assert "set EMBEDDING_MODEL_NAME" in error["message"]
    request.getfixturevalue("embedder")
    error = failure(await yields_of(engine, post("/rerank")))
    assert error["message"].endswith(" answers /rerank: 'demo' generates text; 'minilm' embeds.")


async def test_the_advice_for_a_pooling_model_suggests_no_embedder(engine: ScriptedEngine) -> None:
    engine.model, engine.bodies = Model(("demo",), 512, "cpu", frozenset({"embed"})), {}
    error = failure(await yields_of(engine, post(CHAT)))
    assert error["message"] == f"No model of this worker answers {CHAT}: 'demo' embeds."


# Sizes:


def test_the_largest_number_of_choices_needs_a_small_part_of_a_yield(
    create_answer: CreateAnswer,
) -> None:
    response = create_answer(raw_job(stream=True, sampling_params={"n": 256}))
    deltas = [Delta(index, "", 0, 3, "repetition", "x" * 30) for index in range(256)]
    assert json_size(response.render(deltas)) < 50_000


def test_a_size_counts_the_json_bytes_in_a_post_and_a_comma() -> None:
    values: dict[int, Any] = {5: "a", 6: "é", 8: "😀", 15: {"a": [1, 2]}, 4: []}
    assert {json_size(value): value for value in values.values()} == values
    assert [json_size(value) for value in ('"', "\n", "\ud83d")] == [6, 6, 5]


# Slots for the choices of the items of lists:


async def test_an_item_with_more_choices_than_slots_waits_for_all_slots() -> None:
    slots = ChoiceLimiter(2)
    async with slots.acquire(1):
        large_item = asyncio.create_task(slots.acquire(10).__aenter__())
        await asyncio.sleep(0.01)
        assert not large_item.done()
    async with asyncio.timeout(HUNG_S):
        await large_item


async def test_an_item_cancelled_while_it_waits_releases_its_slots() -> None:
    slots = ChoiceLimiter(2)
    async with slots.acquire(1):
        waiting_item = asyncio.create_task(slots.acquire(2).__aenter__())
        await asyncio.sleep(0.01)
        waiting_item.cancel()
        await asyncio.gather(waiting_item, return_exceptions=True)
    async with asyncio.timeout(HUNG_S), slots.acquire(2):
        pass
