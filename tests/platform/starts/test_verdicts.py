"""Each pair of settings and model is started, and the doctor asked: both say the same.

For the doctor's part alone, which is fast, see tests/settings/test_verdicts.py.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.effort import side_by_side
from support.processes.commands import HANDLER, HOME, Ran, run
from support.tables.starts import PAIRS, Pair, environ, places

pytestmark = pytest.mark.slow

# A job that every engine answers, whatever it can do.
COMMAND = (*HANDLER, "--test_input", '{"input": {"route": "/v1/models"}}')


@pytest.fixture(scope="module")
def start_pair(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Ran]]:
    """Start a worker with every pair, two at once; waits for the one that is named."""
    directory = tmp_path_factory.mktemp("starts")
    places(demo_model, directory)
    environs = {pair.name: {**HOME, **environ(pair, directory)} for pair in PAIRS}
    with side_by_side(
        {name: partial(run, environ, *COMMAND) for name, environ in environs.items()}
    ) as result:
        yield result


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_start_agrees_with_the_doctor(pair: Pair, start_pair: Callable[[str], Ran]) -> None:
    ran = start_pair(pair.name)
    assert (ran.returncode == 0) is pair.starts, ran.stderr[-2_000:]
    assert (pair.of_start or pair.words) in " ".join(ran.stderr.split())
    if not pair.starts:
        assert "Traceback" not in ran.stderr.splitlines()[-1]
        assert "See root cause above" not in ran.stderr
