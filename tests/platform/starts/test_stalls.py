"""Real starts that hang: ended with the phase and the stacks; slow ones are left alone."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import ROOT
from support.engine.memory import FULL
from support.processes.background import background, wait_until
from support.processes.commands import SCRIPT, run

JOB = ("--test_input", '{"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 1}}}')
# Seconds without a movement: far more than a start on a busy machine has before it hangs.
STALL_S = 20
PATIENCE = {"START_STALL_S": str(STALL_S)}
SAID = re.compile(rf"the start has not moved for {STALL_S} s in its phase '(\w+)'")
PLUGIN = ROOT / "tests" / "plugins" / "hanging_parser.py"


def hung(
    environ: Mapping[str, str], folder: Path, *arguments: str, log: str = "text"
) -> tuple[str, str]:
    """Start a worker that hangs; return the phase that it names, and its log."""
    whole = {**environ, **PATIENCE, "LOG_FORMAT": log}
    with background([SCRIPT, *arguments], whole, folder / "log", folder / "out") as worker:
        assert worker.ended() == 1, worker.output
        # Its helpers end last, when everything that was printed is where it belongs.
        wait_until(lambda: not worker.session())
        said = SAID.findall(worker.output)
        assert len(said) == 1, worker.output
        return said[0], worker.output


def test_a_core_that_keeps_the_lock_is_ended_with_its_stacks(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = {**worker_environ, "WORKER_CLS": "support.engine.hangs.HoldsLock"}
    phase, log = hung(environ, tmp_path, *JOB)
    assert phase == "engine"
    assert "VLLM::EngineCore (pid " in log
    assert "the worker (pid " in log
    # The stacks go through the process that writes the log, so they may come after these lines.
    stacks = r'hangs\.py", line \d+ in load_model.* in wait_for_engine_startup'
    assert re.search(stacks, log, re.DOTALL)


# Each hangs for as long as the first one; what is a movement unit/stalls shows.
@pytest.mark.slow
def test_a_core_that_is_no_fork_prints_its_stacks_too(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.touch()
    planted = {"WORKER_CLS": "support.engine.hangs.SleepsNext", FULL: str(full)}
    planted["PYTHONPATH"] = str(ROOT / "tests")
    phase, log = hung({**worker_environ, **planted}, tmp_path, *JOB)
    assert phase == "engine"
    assert "the memory was full, so it is started once more" in log
    assert re.search(r'hangs\.py", line \d+ in load_model', log)


@pytest.mark.slow
def test_a_worker_that_keeps_the_lock_is_ended_and_takes_no_request(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    parser = {"REASONING_PARSER": "never", "REASONING_PARSER_PLUGIN": str(PLUGIN)}
    arguments = ("--serve", "--port", "0")
    phase, log = hung({**worker_environ, **parser}, tmp_path, *arguments, log="json")
    assert phase in ("settings", "weights", "engine", "app")
    assert "hanging_parser.py" in log
    assert '"level": "CRITICAL"' in log


@pytest.mark.slow
def test_a_slow_start_is_left_alone(worker_environ: dict[str, str]) -> None:
    # It takes twice as long as the start may stand still.
    slow = {"WORKER_CLS": "support.engine.hangs.Slow", "START_STALL_S": "6"}
    ran = run({**worker_environ, **slow}, SCRIPT, *JOB)
    assert ran.returncode == 0, ran.stderr
    assert "has not moved" not in ran.stderr
    assert '"choices"' in ran.stdout
