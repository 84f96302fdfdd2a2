"""Tests that startups that hang are stopped with their phase and stacks, and slow ones are not."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import ROOT
from support.engine.memory import FULL_MARKER
from support.processes.background import start_command, wait_until
from support.processes.commands import SCRIPT, run_command

JOB = ("--test_input", '{"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 1}}}')
# Seconds without progress, far more than a startup on a busy machine needs before it hangs.
STALL_S = 20
STALL_SETTINGS = {"START_STALL_S": str(STALL_S)}
STALL_MESSAGE = re.compile(rf"the start has made no progress for {STALL_S} s in its phase '(\w+)'")
PLUGIN = ROOT / "tests" / "plugins" / "hanging_parser.py"


def start_hanging_worker(
    environ: Mapping[str, str], folder: Path, *arguments: str, log: str = "text"
) -> tuple[str, str]:
    """Start a worker that hangs; return the reported phase and the log."""
    whole = {**environ, **STALL_SETTINGS, "LOG_FORMAT": log}
    with start_command([SCRIPT, *arguments], whole, folder / "log", folder / "out") as worker:
        assert worker.wait_for_exit() == 1, worker.output
        # The helper processes exit last, after all output has been written.
        wait_until(lambda: not worker.session_pids())
        phases = STALL_MESSAGE.findall(worker.output)
        assert len(phases) == 1, worker.output
        return phases[0], worker.output


def test_a_core_that_holds_the_gil_is_stopped_and_its_stacks_are_printed(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = {**worker_environ, "WORKER_CLS": "support.engine.hangs.LockHoldingCore"}
    phase, log = start_hanging_worker(environ, tmp_path, *JOB)
    assert phase == "engine"
    assert "VLLM::EngineCore (pid " in log
    assert "the worker (pid " in log
    # The stacks pass through the process that writes the log, so they may follow later.
    stacks = r'hangs\.py", line \d+ in load_model.* in wait_for_engine_startup'
    assert re.search(stacks, log, re.DOTALL)


# Each test hangs as long as the first one. unit/stalls tests the definition of progress.
@pytest.mark.slow
def test_a_core_that_is_not_a_fork_prints_its_stacks_too(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.touch()
    planted = {"WORKER_CLS": "support.engine.hangs.HangingSecondCore", FULL_MARKER: str(full)}
    planted["PYTHONPATH"] = str(ROOT / "tests")
    phase, log = start_hanging_worker({**worker_environ, **planted}, tmp_path, *JOB)
    assert phase == "engine"
    assert "the memory was full, so it is started once more" in log
    assert re.search(r'hangs\.py", line \d+ in load_model', log)


@pytest.mark.slow
def test_a_worker_that_holds_the_gil_is_stopped_and_takes_no_request(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    parser = {"REASONING_PARSER": "never", "REASONING_PARSER_PLUGIN": str(PLUGIN)}
    arguments = ("--serve", "--port", "0")
    phase, log = start_hanging_worker(
        {**worker_environ, **parser}, tmp_path, *arguments, log="json"
    )
    assert phase in ("settings", "weights", "engine", "app")
    assert "hanging_parser.py" in log
    assert '"level": "CRITICAL"' in log


@pytest.mark.slow
def test_a_slow_startup_is_not_stopped(worker_environ: dict[str, str]) -> None:
    # The startup takes twice as long as the limit without progress.
    slow = {"WORKER_CLS": "support.engine.hangs.SlowCore", "START_STALL_S": "6"}
    ran = run_command({**worker_environ, **slow}, SCRIPT, *JOB)
    assert ran.returncode == 0, ran.stderr
    assert "has made no progress" not in ran.stderr
    assert '"choices"' in ran.stdout
