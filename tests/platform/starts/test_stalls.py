"""Real starts that hang: ended with the phase and the stacks; slow ones are left alone."""

import re
from collections.abc import Mapping
from pathlib import Path

from support import ROOT
from support.engine.memory import FULL
from support.processes.background import background, wait_until
from support.processes.commands import HANDLER, run

JOB = ("--test_input", '{"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 1}}}')
# Many times what a start on a busy machine needs between two signs of its life.
PATIENCE = {"START_STALL_S": "6", "PYTHONPATH": str(ROOT / "tests")}
SAID = re.compile(r"the start has not moved for 6 s in its phase '(\w+)'")
PLUGIN = ROOT / "tests" / "plugins" / "hanging_parser.py"


def hung(
    environ: Mapping[str, str], folder: Path, *arguments: str, log: str = "text"
) -> tuple[str, str]:
    """Start a worker that hangs; return the phase that it names, and its log."""
    command = [*HANDLER, *arguments]
    whole = {**environ, **PATIENCE, "LOG_FORMAT": log}
    with background(command, whole, folder / "log", folder / "out") as worker:
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
    cores, worker = log.split("the worker (pid ")
    assert "VLLM::EngineCore (pid " in cores
    assert re.search(r'hangs\.py", line \d+ in load_model', cores)
    assert "in wait_for_engine_startup" in worker


def test_a_core_that_is_no_fork_prints_its_stacks_too(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.touch()
    planted = {"WORKER_CLS": "support.engine.hangs.SleepsNext", FULL: str(full)}
    phase, log = hung({**worker_environ, **planted}, tmp_path, *JOB)
    assert phase == "engine"
    assert "the memory was full, so it is started once more" in log
    assert re.search(r'hangs\.py", line \d+ in load_model', log)


def test_a_worker_that_keeps_the_lock_is_ended_and_takes_no_request(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = {
        **worker_environ,
        "REASONING_PARSER": "never",
        "REASONING_PARSER_PLUGIN": str(PLUGIN),
    }
    phase, log = hung(environ, tmp_path, "--serve", "--port", "0", log="json")
    assert phase in ("settings", "weights", "engine", "app")
    assert "hanging_parser.py" in log
    assert '"level": "CRITICAL"' in log


def test_a_slow_start_is_left_alone(worker_environ: dict[str, str]) -> None:
    environ = {**worker_environ, **PATIENCE, "WORKER_CLS": "support.engine.hangs.Slow"}
    ran = run(environ, *HANDLER, *JOB)
    assert ran.returncode == 0, ran.stderr
    assert "has not moved" not in ran.stderr
    assert '"choices"' in ran.stdout
