"""Real starts with too little memory: a shorter context, a floor, and a second try."""

from pathlib import Path

from support import ROOT
from support.engine.memory import FULL
from support.processes.commands import HANDLER, SCRIPT, run
from support.processes.forked import run_forked

JOB = ("--test_input", '{"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 1}}}')
# Blocks of 128 tokens on a CPU, of which vLLM keeps one for itself.
CACHE = {"NUM_GPU_BLOCKS_OVERRIDE": "5"}
FITS = 512


def test_a_small_cache_shortens_the_context(worker_environ: dict[str, str]) -> None:
    environ = {**worker_environ, **CACHE, "MIN_MODEL_LEN": str(FITS)}
    ran = run_forked(environ, SCRIPT, *JOB)
    assert ran.returncode == 0, ran.stderr
    assert f"a context of {FITS} tokens, which the memory holds, of the model's 2,048" in ran.stderr
    assert f"context: {FITS} tokens; " in ran.stderr
    assert '"choices"' in ran.stdout


def test_a_context_below_the_floor_ends_the_start(worker_environ: dict[str, str]) -> None:
    environ = {**worker_environ, **CACHE, "MIN_MODEL_LEN": str(FITS + 1)}
    ran = run_forked(environ, SCRIPT, *JOB)
    assert ran.returncode == 1
    assert f"less than MIN_MODEL_LEN={FITS + 1}" in ran.stderr
    assert ran.stdout == ""


def test_a_memory_that_was_full_is_tried_once_more_with_less(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.touch()
    planted = {
        "PYTHONPATH": str(ROOT / "tests"),
        "WORKER_CLS": "support.engine.memory.FullOnce",
        FULL: str(full),
    }
    ran = run({**worker_environ, **planted}, *HANDLER, *JOB)
    assert ran.returncode == 0, ran.stderr
    assert "the memory was full, so it is started once more with less" in ran.stderr
    assert "MAX_NUM_SEQS=32 (the memory was full at the first try)" in ran.stderr
    assert '"choices"' in ran.stdout
    assert not full.exists()
