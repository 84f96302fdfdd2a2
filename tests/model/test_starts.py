"""Engines that begin anew: set aside and back, with another loader, from what was compiled."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from model.conftest import Ask
from model.scripts.aside import PROCESSES
from support import ROOT
from support.engine.requests import ENDLESS
from support.engine.scripted import failure
from support.processes.background import HUNG_S
from support.processes.commands import HOME, run
from support.processes.offline_scripts import SCRIPTS

from worker.engine import Engines

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

# Set aside:

GREEDY = {"prompt": "Count:", "sampling_params": {"temperature": 0, "max_tokens": 20}}
BODY = {"prompt": "Count:", "stream": True, **ENDLESS}


# Of an engine that another test has closed: its process for grammars ends with this one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_engine_that_is_set_aside_refuses_for_a_while_and_then_answers_as_before(
    ask: Ask, demo_engine: "InProcessEngine"
) -> None:
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


# A dead client is collected only when the next core is used: its sockets' descriptors, and threads.
ONE_CLIENT = 20
MEGABYTES = 40


@pytest.fixture(scope="module")
def three_absences(demo_model: Path) -> Any:
    """What was answered around and during three absences, and what each time left."""
    ended = run(HOME, SCRIPTS / "aside.py", demo_model)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_greedy_answers_are_the_same_on_every_core(three_absences: Any) -> None:
    assert all(one["answers"] == three_absences["answers"] for one in three_absences["rounds"])


@pytest.mark.slow
def test_requests_that_come_meanwhile_are_answered_if_it_is_short(three_absences: Any) -> None:
    assert three_absences["rounds"][1]["asked"] == three_absences["answers"]


@pytest.mark.slow
def test_a_stream_that_runs_for_too_long_fails_as_retryable(three_absences: Any) -> None:
    for one in three_absences["rounds"]:
        assert (one["running"]["code"], one["running"]["retryable"]) == (503, True)


@pytest.mark.slow
def test_an_absence_leaves_no_process_no_descriptor_and_no_memory(three_absences: Any) -> None:
    before, rounds = three_absences["before"], three_absences["rounds"]
    for one in rounds:
        # Fewer where one had just ended that the start had begun.
        assert one["inside"]["children"] <= before["children"] - PROCESSES
        assert one["after"]["children"] <= before["children"]
    first, last = rounds[0]["after"], rounds[-1]["after"]
    for kind in ("descriptors", "threads"):
        assert last[kind] <= min(first[kind] + 3, before[kind] + ONE_CLIENT)
    assert last["megabytes"] <= before["megabytes"] + MEGABYTES


# Another loader:


@pytest.mark.slow
def test_vllms_own_loader_is_tried_after_the_fast_one_that_failed(
    worker_environ: dict[str, str], demo_model: Path, tmp_path: Path
) -> None:
    ran = run(worker_environ, SCRIPTS / "fast_loader.py", demo_model, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "\nwarm\n" in ran.stderr
    (failed,) = (line for line in ran.stderr.splitlines() if "the loader that was chosen" in line)
    assert "instanttensor" in failed
    assert "LOAD_FORMAT=auto (instanttensor failed)" in ran.stderr


# The compile cache, with an engine that compiles C++ on a CPU:

# Half of it is for the compiler, with other tests running at the same time.
TIMEOUT_S = 2 * HUNG_S


@dataclass(frozen=True)
class Start:
    """The log of a start, and what it left compiled."""

    log: str
    kernels: set[tuple[str, int]]


def started(model: Path, home: Path, volume: Path) -> Start:
    """Start an engine in a container of its own: nothing lies at home, as on any other worker."""
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
    kernels = {(path.name, path.stat().st_mtime_ns // 10**9) for path in compiled}
    return Start(done.stderr, kernels)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="on a CPU the engine compiles with g++")
@pytest.mark.timeout(3 * TIMEOUT_S)
def test_the_second_worker_does_not_compile_again(demo_model: Path, tmp_path: Path) -> None:
    volume, home = tmp_path / "volume", tmp_path / "home"
    volume.mkdir()
    first = started(demo_model, home, volume)
    second = started(demo_model, home, volume)
    assert ": unpacked, " not in first.log
    assert first.log.count(": published, ") == 2
    assert second.log.count(": unpacked, ") == 2
    assert "publish" not in second.log
    # Names are hashes of what is compiled; a kernel that was compiled again is younger.
    assert first.kernels
    assert second.kernels == first.kernels
