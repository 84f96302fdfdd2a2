"""Engines that begin anew: set aside and back, and from what was compiled."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from model.conftest import Ask
from support import ROOT
from support.engine.requests import ENDLESS
from support.engine.scripted import failure
from support.processes.background import HUNG_S
from support.processes.commands import HOME, run
from support.processes.offline_scripts import SCRIPTS

from worker.engine import Engines

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

GREEDY = {"prompt": "Count:", "sampling_params": {"temperature": 0, "max_tokens": 20}}
BODY = {"prompt": "Count:", "stream": True, **ENDLESS}


# Of an engine that another test has closed: its process for grammars ends with this one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_one_set_aside_refuses_then_answers(ask: Ask, demo_engine: "InProcessEngine") -> None:
    before = await ask(**GREEDY)
    stream = asyncio.create_task(ask(openai_route="/v1/completions", openai_input=BODY))
    async with asyncio.timeout(HUNG_S):
        while not demo_engine.unfinished_requests:
            await asyncio.sleep(0.01)
    async with Engines(demo_engine).aside(patience_s=0.5, drain_s=0.2):
        refused = failure(await ask(**GREEDY))
        (models,) = await ask(openai_route="/v1/models")
        health = failure(await ask(openai_route="/health"))
    assert (refused["code"], refused["retryable"], refused["retry_after"]) == (503, True, 60)
    assert [model["id"] for model in models["data"]] == ["demo"]
    assert health["code"] == 503
    *_, broken = await stream
    assert (failure([broken])["code"], failure([broken])["retryable"]) == (503, True)
    assert await ask(**GREEDY) == before


@pytest.mark.slow
def test_absences_change_no_answer_and_leave_nothing_behind(demo_model: Path) -> None:
    ended = run(HOME, SCRIPTS / "aside.py", demo_model)
    assert ended.returncode == 0, ended.stderr


# The compile cache, with an engine that compiles C++ on a CPU:

# Half of it is for the compiler, with other tests running at the same time.
TIMEOUT_S = 2 * HUNG_S


def started(model: Path, home: Path, volume: Path) -> tuple[str, set[tuple[str, int]]]:
    """Start an engine with nothing at home; return its log, and what it left compiled."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    paths = [str(ROOT / path) for path in ("src", "tests", "builder")]
    done = subprocess.run(
        [sys.executable, SCRIPTS / "compile_cache.py", model, volume],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": ":".join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    compiled = (home / ".cache" / "worker-compiled").rglob("*.so")
    return done.stderr, {(path.name, path.stat().st_mtime_ns // 10**9) for path in compiled}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="on a CPU the engine compiles with g++")
@pytest.mark.timeout(3 * TIMEOUT_S)
def test_the_second_worker_does_not_compile_again(demo_model: Path, tmp_path: Path) -> None:
    volume, home = tmp_path / "volume", tmp_path / "home"
    volume.mkdir()
    first, kernels = started(demo_model, home, volume)
    second, kernels_then = started(demo_model, home, volume)
    assert ": unpacked, " not in first
    assert first.count(": published, ") == 2
    assert second.count(": unpacked, ") == 2
    assert "publish" not in second
    # Names are hashes of what is compiled; a kernel that was compiled again is younger.
    assert kernels
    assert kernels_then == kernels
