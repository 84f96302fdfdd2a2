"""Jobs that begin again when the engine dies before it has answered anything of them."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, Step, chat, raw, tokens, yields_of
from support.engine.yields import events_in, failure, texts_in

from worker.errors import EngineDead, KilledEngine
from worker.routes.again import unless_begun

DIES: tuple[Step, ...] = (0.05, EngineDead())
BEGUN = (*tokens("Begun", finish=None), *DIES)
WHOLE = {"raw": raw(stream=False), "openai": chat(stream=False)}
STREAMS = {"raw-stream": raw(stream=True), "openai-stream": chat(stream=True)}


def engine(*script: Step) -> ScriptedEngine:
    """Return an engine that plays this, and, once it has died and is back, an answer."""
    made = ScriptedEngine(*script)
    made.next_script = tuple(tokens("Hello", " there"))
    return made


def text_of(yields: list[Any]) -> str:
    """Return the text of the first choice, in whichever form."""
    if isinstance(yields[0], str):
        return "".join(texts_in(events_in("".join(yields))))
    if "outputs" in yields[0]:
        return text_of(yields[0]["outputs"])
    choices = [chunk["choices"][0] for chunk in yields]
    if "message" in choices[0]:
        return str(choices[0]["message"]["content"])
    return "".join(part for choice in choices for part in choice["tokens"])


@pytest.mark.parametrize(
    ("payload", "script"),
    [
        *(pytest.param(payload, DIES, id=name) for name, payload in {**WHOLE, **STREAMS}.items()),
        pytest.param({"prompts": ["Hi", "Hi"]}, DIES, id="list"),
        # Of what is not streamed nobody has seen anything.
        *(pytest.param(payload, BEGUN, id=f"{name}-begun") for name, payload in WHOLE.items()),
    ],
)
async def test_a_job_of_which_nothing_was_answered_begins_again(
    payload: dict[str, Any], script: tuple[Step, ...]
) -> None:
    with engine(*script) as scripted:
        yields = await yields_of(scripted, payload)
    assert text_of(yields) == "Hello there"
    assert scripted.waited


@pytest.mark.parametrize("payload", STREAMS.values(), ids=list(STREAMS))
async def test_a_stream_that_has_begun_fails_as_retryable_with_what_it_has(payload: Any) -> None:
    with engine(*BEGUN) as scripted:
        yields = await yields_of(scripted, {**payload, "max_batch_delay_ms": 1})
    error = failure(yields)
    assert (error["code"], error["retryable"]) == (503, True)
    assert "Begun" in str(yields[:-1])
    assert scripted.waited == []


async def test_a_request_that_killed_the_engine_fails_and_is_not_retryable() -> None:
    class Killed(ScriptedEngine):
        async def back(self, request_id: str) -> None:
            raise KilledEngine

    with Killed(*DIES) as scripted:
        error = failure(await yields_of(scripted, raw(stream=False)))
    assert (error["code"], error["type"], error["retryable"]) == (500, "InternalServerError", False)
    assert "not run again" in error["message"]


async def test_an_answer_whose_reader_leaves_is_closed_at_once() -> None:
    closed: list[str] = []

    async def answer() -> AsyncGenerator[str, None]:
        try:
            yield "Begun"
            yield "more"
        finally:
            closed.append("answer")

    with ScriptedEngine() as scripted:
        pieces = unless_begun(scripted, "job-1", answer)
        assert await anext(pieces) == "Begun"
        await pieces.aclose()
    assert closed == ["answer"]
