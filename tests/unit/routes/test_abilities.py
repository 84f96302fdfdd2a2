"""Models that are asked for what they can't do."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, failure, yields_of

from worker.engine import Model

EMBEDDINGS = "/v1/embeddings"
LISTS: list[dict[str, Any]] = [{"prompt": "Hi"}, {"prompts": ["Hi"]}]


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """A model that generates text, beside one that embeds."""
    with ScriptedEngine() as engine, ScriptedEngine() as embedder:
        embedder.model = Model(("minilm", "org/minilm"), 512, "cpu", frozenset({"embed"}))
        embedder.bodies = {EMBEDDINGS: frozenset({"model", "input"})}
        engine.embedder = embedder
        yield engine


async def refused(engine: ScriptedEngine, sent: dict[str, Any]) -> str:
    error = failure(await yields_of(engine, sent))
    assert (error["code"], error["param"], error["retryable"]) == (404, "model", False)
    assert engine.asked == []
    return str(error["message"])


@pytest.mark.parametrize("route", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
async def test_an_embedder_that_is_asked_to_generate(engine: ScriptedEngine, route: str) -> None:
    sent = {"route": route, "method": "POST", "body": {"model": "org/minilm"}}
    assert await refused(engine, sent) == f"'minilm' embeds and can't answer {route}; demo can."


@pytest.mark.parametrize("prompts", LISTS)
async def test_an_embedder_in_the_raw_form(engine: ScriptedEngine, prompts: dict[str, Any]) -> None:
    message = await refused(engine, {**prompts, "model": "minilm"})
    assert message == "'minilm' embeds and can't answer prompts and messages; demo can."


async def test_a_model_that_generates_is_asked_to_embed(engine: ScriptedEngine) -> None:
    sent = {"route": EMBEDDINGS, "method": "POST", "body": {"model": "demo", "input": "Hi"}}
    message = await refused(engine, sent)
    assert message == f"'demo' generates text and can't answer {EMBEDDINGS}; minilm can."
