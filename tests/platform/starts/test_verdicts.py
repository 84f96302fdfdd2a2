"""Tests that the startup and the doctor agree on each pair of settings and model.

tests/settings/test_verdicts.py tests the doctor alone, which is fast.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.effort import run_concurrently
from support.processes.commands import HANDLER, HOME, CompletedCommand, run_command
from support.tables.starts import REFUSED_WITH_CORE, START_CASES, StartCase, environ, make_models

pytestmark = pytest.mark.slow

# A job that every engine can answer.
COMMAND = (*HANDLER, "--test_input", '{"input": {"route": "/v1/models"}}')


@pytest.fixture(scope="module")
def start_pair(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], CompletedCommand]]:
    """Start a worker for every pair, two at a time; return a function that waits for a pair."""
    directory = tmp_path_factory.mktemp("starts")
    make_models(demo_model, directory)
    environs = {pair.name: {**HOME, **environ(pair, directory)} for pair in START_CASES}
    with run_concurrently(
        {name: partial(run_command, environ, *COMMAND) for name, environ in environs.items()}
    ) as result:
        yield result


@pytest.mark.parametrize("pair", START_CASES, ids=lambda pair: pair.name)
def test_the_startup_agrees_with_the_doctor(
    pair: StartCase, start_pair: Callable[[str], CompletedCommand]
) -> None:
    pair.skip_if_impossible()
    ran = start_pair(pair.name)
    assert (ran.returncode == 0) is pair.starts, ran.stderr[-2_000:]
    assert (pair.start_message or pair.message) in " ".join(ran.stderr.split())
    if not pair.starts:
        assert "Traceback" not in ran.stderr.splitlines()[-1]
        assert "See root cause above" not in ran.stderr
        # Callers would wait longer for the reason if a core had to find it.
        assert ("(EngineCore pid=" in ran.stderr) is (pair.name in REFUSED_WITH_CORE)
