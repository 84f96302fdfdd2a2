"""Tests of engines that are suspended and resumed, and of the compile cache."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from model.conftest import SCRIPTS, Ask
from support import ROOT
from support.engine.requests import ENDLESS
from support.engine.scripted import failure
from support.processes.background import HUNG_S
from support.processes.commands import HOME, run_command

from worker.engine import Engines

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

GREEDY = {"prompt": "Count:", "sampling_params": {"temperature": 0, "max_tokens": 20}}
BODY = {"prompt": "Count:", "stream": True, **ENDLESS}


# The warning is about a closed engine of another test, whose grammar process exits with this one.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_suspended_engine_refuses_jobs_until_it_resumes(
    ask: Ask, demo_engine: "InProcessEngine"
) -> None:
    before = await ask(**GREEDY)
    stream = asyncio.create_task(ask(openai_route="/v1/completions", openai_input=BODY))
    async with asyncio.timeout(HUNG_S):
        while not demo_engine.unfinished_request_count:
            await asyncio.sleep(0.01)
    async with Engines(demo_engine).suspend(wait_timeout_s=0.5, drain_timeout_s=0.2):
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
def test_suspending_an_engine_changes_no_answer_and_leaks_nothing(demo_model: Path) -> None:
    result = run_command(HOME, SCRIPTS / "suspend.py", demo_model)
    assert result.returncode == 0, result.stderr


# The compile cache, with an engine that compiles C++ on a CPU:

# Half of the time is for the compiler while other tests run.
TIMEOUT_S = 2 * HUNG_S


def start_engine(model: Path, home: Path, volume: Path) -> tuple[str, set[tuple[str, int]]]:
    """Start an engine with an empty home directory; return its log and its compiled files."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    paths = [str(ROOT / path) for path in ("src", "tests", "builder")]
    result = subprocess.run(
        [sys.executable, SCRIPTS / "compile_cache.py", model, volume],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": ":".join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    compiled = (home / ".cache" / "worker-compiled").rglob("*.so")
    return result.stderr, {(path.name, path.stat().st_mtime_ns // 10**9) for path in compiled}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="on a CPU the engine compiles with g++")
@pytest.mark.timeout(3 * TIMEOUT_S)
def test_the_second_worker_does_not_compile_again(demo_model: Path, tmp_path: Path) -> None:
    volume, home = tmp_path / "volume", tmp_path / "home"
    volume.mkdir()
    first, kernels = start_engine(demo_model, home, volume)
    second, later_kernels = start_engine(demo_model, home, volume)
    assert ": unpacked, " not in first
    assert first.count(": published, ") == 2
    assert second.count(": unpacked, ") == 2
    assert "publish" not in second
    # A file name is the hash of the compiled code. A recompiled kernel has a newer modification
    # time.
    assert kernels
    assert later_kernels == kernels
