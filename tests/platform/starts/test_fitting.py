"""Real starts with too little memory: a shorter context, a floor, and a second try."""

import re
from functools import partial
from pathlib import Path

import pytest
from support import ROOT
from support.engine.memory import FULL
from support.processes.commands import HANDLER, SCRIPT, run
from support.processes.forked import READ_ON_IMPORT, run_forked
from support.processes.side_by_side import side_by_side

JOB = ("--test_input", '{"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 1}}}')
# Blocks of 128 tokens on a CPU, of which vLLM keeps one for itself.
CACHE = {"NUM_GPU_BLOCKS_OVERRIDE": "5"}
FITS = 512
TOLD = re.compile(r"a context of ([\d,]+) tokens, which the memory holds, of the model's")
# A text of a million tokens would take two GiB of the demo model's cache.
LONG = {"HF_OVERRIDES": '{"max_position_embeddings": 1048576}'}
ANY = {"MIN_MODEL_LEN": "1"}
SMALL = [
    {**ANY, "NUM_GPU_BLOCKS_OVERRIDE": "2"},
    pytest.param(LONG, marks=pytest.mark.slow),
    pytest.param({**LONG, "BLOCK_SIZE": "64"}, marks=pytest.mark.slow),
    pytest.param({**LONG, "KV_CACHE_MEMORY_BYTES": "300M"}, marks=pytest.mark.slow),
    pytest.param({**LONG, "MAX_MODEL_LEN": "auto", "MAX_NUM_SEQS": "1"}, marks=pytest.mark.slow),
    pytest.param({**ANY, "NUM_GPU_BLOCKS_OVERRIDE": "16"}, marks=pytest.mark.slow),
    pytest.param(
        {**ANY, "NUM_GPU_BLOCKS_OVERRIDE": "5", "BLOCK_SIZE": "32"}, marks=pytest.mark.slow
    ),
    pytest.param(
        {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_OVERRIDES": '{"max_position_embeddings": 600000}'},
        marks=pytest.mark.slow,
    ),
]
STARTS = 20


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


def worked(environ: dict[str, str], *options: str) -> str:
    """Return what a worker printed that ended well."""
    if any(name.startswith(READ_ON_IMPORT) for name in environ):
        ran = run(environ, *HANDLER, *options)
    else:
        ran = run_forked(environ, SCRIPT, *options)
    assert ran.returncode == 0, ran.stderr
    return " ".join(f"{ran.stdout}{ran.stderr}".split())


@pytest.mark.parametrize("small", SMALL, ids=lambda small: " ".join(small.values()))
def test_the_doctor_tells_the_context_that_the_start_has(
    small: dict[str, str], worker_environ: dict[str, str]
) -> None:
    environ = {**worker_environ, **small}
    (foretold,), (told,) = (
        TOLD.findall(worked(environ, *options)) for options in (("--check",), JOB)
    )
    assert foretold == told


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


@pytest.mark.slow
def test_of_twenty_starts_twenty_come_up_at_the_second_try(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    def start(number: int) -> bool:
        full = tmp_path / f"full {number}"
        full.touch()
        planted = {"WORKER_CLS": "support.engine.memory.FullOnce", FULL: str(full)}
        ran = run_forked({**worker_environ, **planted}, SCRIPT, *JOB)
        again = "the memory was full, so it is started once more with less" in ran.stderr
        return ran.returncode == 0 and again and '"choices"' in ran.stdout and not full.exists()

    starts = {str(number): partial(start, number) for number in range(STARTS)}
    with side_by_side(starts) as came_up:
        assert sum(map(came_up, starts)) == STARTS
