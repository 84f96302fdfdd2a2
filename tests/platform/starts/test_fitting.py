"""Tests of real startups with too little memory: a shorter context, and a second attempt."""

import re
from pathlib import Path

import pytest
from support.engine.worker_classes import FULL_MARKER
from support.processes.commands import SCRIPT, run_command

JOB = ("--test_input", '{"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 1}}}')
# A block has 128 tokens on a CPU, and vLLM reserves one block.
CACHE = {"NUM_GPU_BLOCKS_OVERRIDE": "5"}
FITS = 512
CONTEXT_MESSAGE = re.compile(r"the context has ([\d,]+) of the model's")
# A sequence of a million tokens would take two GiB of the demo model's cache.
LONG = {"HF_OVERRIDES": '{"max_position_embeddings": 1048576}'}
LESS_LONG = {"HF_OVERRIDES": '{"max_position_embeddings": 600000}'}
ANY = {"MIN_MODEL_LEN": "1"}


def test_a_small_cache_shortens_the_context(worker_environ: dict[str, str]) -> None:
    environ = {**worker_environ, **CACHE, "MIN_MODEL_LEN": str(FITS)}
    ran = run_command(environ, SCRIPT, *JOB)
    assert ran.returncode == 0, ran.stderr
    assert f"the context has {FITS} of the model's 2,048 tokens" in ran.stderr
    assert f"context: {FITS} tokens; " in ran.stderr
    assert '"choices"' in ran.stdout


def read_context(environ: dict[str, str], *options: str) -> str:
    """Return the context in the output of a worker that exits successfully."""
    ran = run_command(environ, SCRIPT, *options)
    assert ran.returncode == 0, ran.stderr
    (context,) = CONTEXT_MESSAGE.findall(" ".join(f"{ran.stdout}{ran.stderr}".split()))
    return str(context)


# Each row starts a worker. unit/doctor and settings/test_verdicts.py test the doctor's messages.
@pytest.mark.slow
@pytest.mark.parametrize(
    "small",
    [
        {**ANY, "NUM_GPU_BLOCKS_OVERRIDE": "2"},
        {**LONG, "BLOCK_SIZE": "64"},
        {**LONG, "KV_CACHE_MEMORY_BYTES": "300M"},
        {**LONG, "MAX_MODEL_LEN": "auto", "MAX_NUM_SEQS": "1"},
        {**ANY, "NUM_GPU_BLOCKS_OVERRIDE": "5", "BLOCK_SIZE": "32"},
        {**LESS_LONG, "VLLM_CPU_KVCACHE_SPACE": "1"},
    ],
    ids=lambda small: " ".join(small.values()),
)
def test_the_doctor_predicts_the_context_of_the_startup(
    small: dict[str, str], worker_environ: dict[str, str]
) -> None:
    environ = {**worker_environ, **small}
    assert read_context(environ, "--check") == read_context(environ, *JOB)


@pytest.mark.slow
def test_a_startup_that_runs_out_of_memory_is_retried_with_less(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.touch()
    planted = {
        "WORKER_CLS": "support.engine.worker_classes.OutOfMemoryOnce",
        FULL_MARKER: str(full),
    }
    ran = run_command({**worker_environ, **planted}, SCRIPT, *JOB)
    assert ran.returncode == 0, ran.stderr
    assert "the memory was full, so it is started once more with less" in ran.stderr
    assert "MAX_NUM_SEQS=32 (the memory was full at the first try)" in ran.stderr
    assert '"choices"' in ran.stdout
    assert not full.exists()
