"""Hostile requests before they reach the engine: refused or passed on, in a short time.

``nox -s fuzz`` sends the same rows to a running worker.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from support.effort import loop_iterations
from support.engine.scripted import ScriptedEngine, settings
from support.tables.attacks import KINDS, Attack, Expected

from worker.dialects import parse_input
from worker.dialects.openai import forward
from worker.dialects.table import find_route
from worker.errors import RequestError, UnknownRoute
from worker.job import OpenAIJob, PromptListJob, RawJob
from worker.limits.inputs import RAW_SHAPE, check_request
from worker.limits.table import LIMITS
from worker.validation import SAMPLING_PARAMS

# The kinds of rows that are jobs.
JOB_KINDS = [kind for kind in KINDS if kind != "http"]
# Limit in loop iterations; every row takes less than a tenth of it.
MAX_ITERATIONS = 100_000_000


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


@pytest.mark.parametrize("kind", JOB_KINDS)
def test_hostile_jobs_are_refused_early_or_left_to_the_engine_in_a_short_time(
    kind: str, engine: ScriptedEngine
) -> None:
    times: dict[str, float] = {}
    for row in KINDS[kind]:
        payload = decode_row(row)
        start = time.thread_time()
        error = refusal(payload, engine)
        times[row.name] = time.thread_time() - start
        assert error is None or row.expected is not Expected.ANSWERED, row.name
        assert error is None or 400 <= error.status < 500, row.name
    slowest = next(row for row in KINDS[kind] if row.name == max(times, key=times.__getitem__))
    payload = decode_row(slowest)
    assert loop_iterations(partial(refusal, payload, engine)) < MAX_ITERATIONS, slowest.name


def test_the_names_of_rows_are_unique() -> None:
    names = [f"{kind}: {row.name}" for kind, rows in KINDS.items() for row in rows]
    assert not [name for name, count in Counter(names).items() if count > 1]


def test_each_limit_names_hostile_requests_that_show_its_harm() -> None:
    names = {row.name.rpartition(" (")[0] for rows in KINDS.values() for row in rows}
    for limit in LIMITS:
        assert limit.harm, limit.name
        assert {*limit.attacks} <= names, limit.name
        assert limit.attacks or limit.module.startswith("worker.media"), limit.name


def decode_row(row: Attack) -> Any:
    """Return a row's input; None if Python can't decode it as JSON."""
    payload = row.build()
    if isinstance(payload, bytes):
        with suppress(ValueError, RecursionError):
            return json.loads(payload)
        return None
    return payload


def refusal(payload: Any, engine: ScriptedEngine) -> RequestError | None:
    """Return the error that refuses a job before it reaches the engine; None if it is accepted."""
    try:
        job = parse_input(payload)
        if isinstance(job, OpenAIJob):
            route = find_route(job)
            if route is None:
                return UnknownRoute(job.route)
            if not (route.handler or route.generate):
                forward.prepare_body(job, route, engine, "job-1", settings())
        elif isinstance(job, RawJob | PromptListJob):
            shared = job if isinstance(job, RawJob) else job.shared
            check_request(shared.body_to_check, RAW_SHAPE, settings(), SAMPLING_PARAMS)
    except RequestError as error:
        return error
    return None
