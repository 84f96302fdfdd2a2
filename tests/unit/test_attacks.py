"""Hostile requests before the engine sees them: a refusal or a job, soon, and never a crash.

What becomes of them beyond that, ``make fuzz`` shows.
"""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, settings
from support.tables.attacks import EARLY, KINDS
from support.tables.attacks.row import Attack, Expected

from worker.errors import RequestError, UnknownRoute
from worker.job import OpenAIJob, parse_input
from worker.routes.openai import bodies, find

# Seconds of the processor: nothing takes a third of it.
SOON_S = 10.0
JOBS = {
    f"{kind}: {row.name}": row for kind, rows in KINDS.items() if kind != "http" for row in rows
}


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


@pytest.mark.parametrize("name", JOBS)
def test_a_hostile_job_is_refused_or_passed_on_soon(name: str, engine: ScriptedEngine) -> None:
    row = JOBS[name]
    payload = decoded(row)
    began = time.process_time()
    refused = refusal(payload, engine)
    assert time.process_time() - began < SOON_S
    assert not (refused and row.expected is Expected.ANSWERED)
    assert refused or name not in EARLY


def test_no_two_rows_have_one_name() -> None:
    assert len(JOBS) + len(KINDS["http"]) == sum(map(len, KINDS.values()))
    assert JOBS.keys() >= EARLY


def decoded(row: Attack) -> Any:
    """Return a row's input; None if it is no JSON that Python reads."""
    payload = row.build()
    if isinstance(payload, bytes):
        with suppress(ValueError, RecursionError):
            return json.loads(payload)
        return None
    return payload


def refusal(payload: Any, engine: ScriptedEngine) -> RequestError | None:
    """Return the error that ends a job before its engine sees it."""
    try:
        job = parse_input(payload)
        if isinstance(job, OpenAIJob):
            route = find(job)
            if route is None:
                return UnknownRoute(job.route)
            if not route.own:
                bodies.prepare(job, route, engine, "job-1", settings())
    except RequestError as error:
        return error
    return None
