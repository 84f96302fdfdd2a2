"""What vLLM keeps of texts, by layers that are built without weights: equal in all releases."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.doctor import options
from support.processes.commands import HOME, run
from support.tables.models import RECORDED

from worker.engine.cache_plan import CachePlan, Fitted, plan_cache
from worker.engine.machine import Gpu, Machine
from worker.errors import StartFailed

ONE = Machine(cpu=False, gpus=(Gpu("", 0),))
GIB = 2**30
A40 = Gpu("NVIDIA A40", 44 * GIB, 86)
# Elements that vLLM adds to two matrices: it makes 128320 words of 128259, a multiple of 64.
PADDING = {"vision": 2 * 61 * 4096}
# The processor of images needs a tokenizer of its own.
TEXTUAL = [name for name in RECORDED if name != "vision"]


def plan(name: str, folder: Path, tensor: int = 1, gpu: Gpu = A40, **settings: str) -> CachePlan:
    model = RECORDED[name]
    place = str(model.write(folder / name))
    engine = (
        options(ONE)
        .parse({"MODEL": place, "TOKENIZER": place, **model.settings, **settings})
        .arguments
    )
    return plan_cache(engine, model.config["architectures"], tensor, gpu)


@pytest.mark.parametrize("name", RECORDED)
def test_a_token_takes_what_its_layers_say(name: str, tmp_path: Path) -> None:
    model, made = RECORDED[name], plan(name, tmp_path)
    assert made.token_bytes == model.token
    if not any(kind in model.tensors for kind in ("I32", "U8", "F8_E4M3", "F32")):
        assert made.parameters == sum(model.tensors.values()) + PADDING.get(name, 0)


@pytest.mark.parametrize(
    ("name", "shared"), [("GQA", 2), ("MLA", 1), ("AWQ", 2), ("hybrid", 2), ("sliding window", 1)]
)
def test_gpus_share_the_heads_that_there_are(name: str, shared: int, tmp_path: Path) -> None:
    model = RECORDED[name]
    made = plan(name, tmp_path, tensor=2)
    assert made.token_bytes == model.token / shared


@pytest.mark.parametrize(("dtype", "size"), [("auto", 2), ("bfloat16", 2), ("float32", 4)])
def test_a_model_computes_in_the_type_that_vllm_resolves(
    dtype: str, size: int, tmp_path: Path
) -> None:
    made = plan("GQA", tmp_path, DTYPE=dtype)
    assert made.element_bytes == size
    # The cache has the same type, unless it has one of its own.
    assert made.token_bytes == RECORDED["GQA"].token * size / 2


def test_a_cache_holds_as_many_texts_as_its_blocks_and_a_batch_do(tmp_path: Path) -> None:
    made = plan("GQA", tmp_path)
    assert made.text_bytes(8192) == GIB
    assert made.fitted(4 * GIB, 8192) == Fitted(8192, 4.0)
    # No more are computed at once than a batch holds.
    assert made.fitted(1024 * GIB, 8192).texts == 256
    # One block is the core's own.
    assert made.fitted(GIB, 131072).context == 8192 - 16
    assert made.fitted(16 * 131072, 131072).context == 0
    assert plan("embedder", tmp_path).fitted(0, 512) == Fitted(512, math.inf)


def test_a_window_or_a_state_bounds_what_a_text_takes(tmp_path: Path) -> None:
    window = plan("sliding window", tmp_path)
    assert window.text_bytes(32768) - window.text_bytes(16384) == 16384 * window.token_bytes
    state = plan("hybrid", tmp_path)
    first, second, third = (state.text_bytes(state.length // part) for part in (4, 2, 1))
    assert second - first == pytest.approx((third - second) / 2, rel=0.01)
    assert first > state.length // 4 * state.token_bytes


def test_blocks_have_the_sizes_that_they_have_on_gpus(tmp_path: Path) -> None:
    """A start on a GPU logs 400 tokens for this hybrid model, and 1.59 % of padding."""
    hybrid, windows = plan("hybrid", tmp_path), plan("sliding window", tmp_path)
    assert hybrid.config.cache_config.block_size == 400
    state = next(spec for spec in hybrid.specs.values() if hasattr(spec, "shapes"))
    bare = replace(state, page_size_padded=None).page_size_bytes
    assert state.page_size_bytes / bare == pytest.approx(1.0159, abs=0.0001)
    assert {spec.block_size for spec in windows.specs.values()} == {16}


@pytest.mark.parametrize(
    ("gpu", "batch"),
    [
        (A40, (2048, 256)),
        (Gpu("NVIDIA H100 80GB HBM3", 79 * GIB, 90), (8192, 1024)),
        (Gpu("NVIDIA B200", 178 * GIB, 100), (16384, 1024)),
    ],
)
def test_a_batch_is_as_large_as_a_gpu_makes_it(
    gpu: Gpu, batch: tuple[int, int], tmp_path: Path
) -> None:
    scheduler = plan("sliding window", tmp_path, gpu=gpu).config.scheduler_config
    assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == batch
    # Tokens of two batches are in a window: the next one is prepared while one is computed.
    assert scheduler.async_scheduling


def test_a_model_that_vllm_can_not_build_is_refused_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"heads \(32\).* \(3\)"):
        plan("GQA", tmp_path, tensor=3)


def test_what_a_tokenizer_is_needed_for_is_left_out(tmp_path: Path) -> None:
    made = plan("GQA", tmp_path, REASONING_PARSER="qwen3")
    assert made.token_bytes == RECORDED["GQA"].token


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    """Make all executors, in a process that they may change."""
    environ = {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    ran = run({**HOME, **environ}, sys.executable, "-m", "support.engine.layers", *TEXTUAL)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTUAL)
def test_a_start_keeps_of_texts_what_was_planned(name: str, compared: dict[str, Any]) -> None:
    found = compared[name]
    assert found["made"] == found["planned"]
    assert bool(found["made"]) is (RECORDED[name].token > 0)
