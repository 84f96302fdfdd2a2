"""Anthropic's budget for reasoning, where the model's reasoning is not told from its answer."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, settings

from worker.job import OpenAIJob
from worker.routes.openai import ROUTES, bodies

MESSAGES = "/v1/messages"
BUDGET = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEngine]:
    monkeypatch.setattr(bodies, "_logged", set())
    with ScriptedEngine() as engine:
        engine.bodies = {MESSAGES: frozenset({"model", "thinking"})}
        yield engine


def thinking(engine: ScriptedEngine, asked: Any, **environ: str) -> Any:
    """Return what vLLM's server gets of it."""
    route = next(route for route in ROUTES if route.path == MESSAGES)
    job = OpenAIJob(route=MESSAGES, body={"thinking": asked})
    body = bodies.prepare(job, route, engine, "job-1", settings(**environ)).body
    assert body is not None
    return body.get("thinking")


def test_a_budget_has_no_effect_and_is_logged(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert thinking(engine, BUDGET) is None
    assert caplog.messages == [
        "request job-1: 'thinking' is no parameter of /v1/messages: no effect"
    ]


@pytest.mark.parametrize("other", [{"type": "adaptive"}, {"type": "disabled"}, "enabled", 5])
def test_vllm_judges_everything_else(engine: ScriptedEngine, other: Any) -> None:
    assert thinking(engine, other) == other


def test_where_requests_are_strict_vllm_refuses_it(engine: ScriptedEngine) -> None:
    assert thinking(engine, BUDGET, STRICT_REQUESTS="1") == BUDGET


def test_a_model_whose_reasoning_is_told_apart_gets_its_budget(engine: ScriptedEngine) -> None:
    engine.model = replace(engine.model, reasons=True)
    assert thinking(engine, BUDGET) == BUDGET
