"""Hostile requests before the engine sees them: a refusal or a job, soon, and never a crash.

What becomes of them beyond that, ``make fuzz`` shows.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from support.effort import seconds, turns
from support.engine.scripted import ScriptedEngine, settings
from support.tables.attacks import KINDS, early
from support.tables.attacks.row import Attack, Expected

from worker.dialects import parse_input
from worker.dialects.openai import bodies
from worker.dialects.table import find
from worker.errors import RequestError, UnknownRoute
from worker.job import ListJob, OpenAIJob, RawJob
from worker.limits.shapes import RAW
from worker.limits.table import Checked, check
from worker.validation import SAMPLING

JOBS = {
    f"{kind}: {row.name}": row for kind, rows in KINDS.items() if kind != "http" for row in rows
}
EARLY = frozenset(early())
# Turns of a loop: no row takes a tenth of it.
SOON = 100_000_000


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


@pytest.mark.parametrize("name", JOBS)
def test_a_hostile_job_is_refused_early_or_left_to_the_engine(
    name: str, engine: ScriptedEngine
) -> None:
    refused = refusal(decoded(JOBS[name]), engine) is not None
    must = "must" if refused else "must not"
    assert refused is (name in EARLY), f"early.txt {must} name: {name}"
    assert not refused or JOBS[name].expected is Expected.REFUSED, f"drop its word: {name}"


def test_no_hostile_job_is_looked_at_for_long(engine: ScriptedEngine) -> None:
    payloads = {name: decoded(row) for name, row in JOBS.items()}
    took = {name: seconds(partial(refusal, given, engine)) for name, given in payloads.items()}
    slowest = max(took, key=took.__getitem__)
    assert turns(partial(refusal, payloads[slowest], engine)) < SOON, slowest


def test_no_two_rows_have_one_name() -> None:
    names = [f"{kind}: {row.name}" for kind, rows in KINDS.items() for row in rows]
    assert not [name for name, count in Counter(names).items() if count > 1]
    assert not EARLY - JOBS.keys(), "early.txt must not name what is no row"


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
            if not (route.own or route.generate):
                bodies.prepare(job, route, engine, "job-1", settings())
        elif isinstance(job, RawJob | ListJob):
            shared = job if isinstance(job, RawJob) else job.shared
            check(Checked(shared.body, RAW, settings(), SAMPLING))
    except RequestError as error:
        return error
    return None
