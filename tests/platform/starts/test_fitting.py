"""Real starts with too little memory: a shorter context, and a second try."""

import re
from pathlib import Path

import pytest
from support.engine.memory import FULL
from support.processes.commands import SCRIPT, run

JOB = ("--test_input", '{"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 1}}}')
# Blocks of 128 tokens on a CPU, of which vLLM keeps one for itself.
CACHE = {"NUM_GPU_BLOCKS_OVERRIDE": "5"}
FITS = 512
SAID = re.compile(r"a context of ([\d,]+) tokens, which the memory holds, of the model's")
# A text of a million tokens would take two GiB of the demo model's cache.
LONG = {"HF_OVERRIDES": '{"max_position_embeddings": 1048576}'}
LESS_LONG = {"HF_OVERRIDES": '{"max_position_embeddings": 600000}'}
ANY = {"MIN_MODEL_LEN": "1"}


def test_a_small_cache_shortens_the_context(worker_environ: dict[str, str]) -> None:
    environ = {**worker_environ, **CACHE, "MIN_MODEL_LEN": str(FITS)}
    ran = run(environ, SCRIPT, *JOB)
    assert ran.returncode == 0, ran.stderr
    assert f"a context of {FITS} tokens, which the memory holds, of the model's 2,048" in ran.stderr
    assert f"context: {FITS} tokens; " in ran.stderr
    assert '"choices"' in ran.stdout


def context_of(environ: dict[str, str], *options: str) -> str:
    """Return the context that a worker names which ends well."""
    ran = run(environ, SCRIPT, *options)
    assert ran.returncode == 0, ran.stderr
    (context,) = SAID.findall(" ".join(f"{ran.stdout}{ran.stderr}".split()))
    return str(context)


# A start each. What the doctor says of memory unit/doctor and settings/test_verdicts.py show.
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
def test_the_doctor_names_the_context_that_the_start_has(
    small: dict[str, str], worker_environ: dict[str, str]
) -> None:
    environ = {**worker_environ, **small}
    assert context_of(environ, "--check") == context_of(environ, *JOB)


@pytest.mark.slow
def test_a_memory_that_was_full_is_tried_once_more_with_less(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.touch()
    planted = {"WORKER_CLS": "support.engine.memory.FullOnce", FULL: str(full)}
    ran = run({**worker_environ, **planted}, SCRIPT, *JOB)
    assert ran.returncode == 0, ran.stderr
    assert "the memory was full, so it is started once more with less" in ran.stderr
    assert "MAX_NUM_SEQS=32 (the memory was full at the first try)" in ran.stderr
    assert '"choices"' in ran.stdout
    assert not full.exists()
