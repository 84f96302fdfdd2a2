"""Tests of planned cache sizes, computed from layers without weights, in all releases of vLLM."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.doctor import options
from support.processes.commands import HOME, run_command
from support.tables.models import RECORDED_MODELS

from worker.engine.cache_plan import KvCacheCapacity, KvCachePlan, plan_kv_cache
from worker.engine.machine import Gpu, Machine
from worker.errors import StartFailed

# The doctor's tests cover the worker's part; these compare it with all layers of vLLM.
pytestmark = pytest.mark.slow

ONE_GPU = Machine(cpu=False, gpus=(Gpu("", 0),))
GIB = 2**30
A40 = Gpu("NVIDIA A40", 44 * GIB, 86)
# Elements that vLLM adds to two matrices, since it pads 128259 words to 128320, a multiple of 64.
PADDING = {"vision": 2 * 61 * 4096}
# The image processor of a vision model needs a tokenizer of its own.
TEXT_MODELS = [name for name in RECORDED_MODELS if name != "vision"]


def create_plan(
    name: str, folder: Path, tensor_parallel: int = 1, gpu: Gpu = A40, **settings: str
) -> KvCachePlan:
    model = RECORDED_MODELS[name]
    place = str(model.write(folder / name))
    engine = (
        options(ONE_GPU)
        .parse_engine_settings({"MODEL": place, "TOKENIZER": place, **model.settings, **settings})
        .arguments
    )
    return plan_kv_cache(engine, model.config["architectures"], tensor_parallel, gpu)


@pytest.mark.parametrize("name", RECORDED_MODELS)
def test_a_token_takes_the_cache_bytes_of_its_layers(name: str, tmp_path: Path) -> None:
    model, plan = RECORDED_MODELS[name], create_plan(name, tmp_path)
    assert plan.bytes_per_token == model.token
    if not any(kind in model.tensors for kind in ("I32", "U8", "F8_E4M3", "F32")):
        assert plan.parameter_count == sum(model.tensors.values()) + PADDING.get(name, 0)


@pytest.mark.parametrize(
    ("name", "shared"), [("GQA", 2), ("MLA", 1), ("AWQ", 2), ("hybrid", 2), ("sliding window", 1)]
)
def test_gpus_share_the_available_heads(name: str, shared: int, tmp_path: Path) -> None:
    model = RECORDED_MODELS[name]
    plan = create_plan(name, tmp_path, tensor_parallel=2)
    assert plan.bytes_per_token == model.token / shared


@pytest.mark.parametrize(("dtype", "size"), [("auto", 2), ("bfloat16", 2), ("float32", 4)])
def test_a_plan_has_the_dtype_that_vllm_resolves(dtype: str, size: int, tmp_path: Path) -> None:
    plan = create_plan("GQA", tmp_path, DTYPE=dtype)
    assert plan.element_bytes == size
    # The cache has the same type, unless the cache's own type is set.
    assert plan.bytes_per_token == RECORDED_MODELS["GQA"].token * size / 2


def test_the_blocks_and_the_batch_limit_the_number_of_cached_sequences(tmp_path: Path) -> None:
    plan = create_plan("GQA", tmp_path)
    assert plan.max_bytes_per_sequence(8192) == GIB
    assert plan.capacity(4 * GIB, 8192) == KvCacheCapacity(8192, 4.0)
    # The number of concurrent sequences is limited by the size of a batch.
    assert plan.capacity(1024 * GIB, 8192).sequences == 256
    # The core reserves one block.
    assert plan.capacity(GIB, 131072).context_length == 8192 - 16
    assert plan.capacity(16 * 131072, 131072).context_length == 0
    assert create_plan("embedder", tmp_path).capacity(0, 512) == KvCacheCapacity(512, math.inf)


def test_a_window_or_a_state_limits_the_bytes_of_a_sequence(tmp_path: Path) -> None:
    window = create_plan("sliding window", tmp_path)
    assert (
        window.max_bytes_per_sequence(32768) - window.max_bytes_per_sequence(16384)
        == 16384 * window.bytes_per_token
    )
    state = create_plan("hybrid", tmp_path)
    first, second, third = (
        state.max_bytes_per_sequence(state.default_context_length // part) for part in (4, 2, 1)
    )
    assert second - first == pytest.approx((third - second) / 2, rel=0.01)
    assert first > state.default_context_length // 4 * state.bytes_per_token


def test_blocks_have_the_same_sizes_as_on_gpus(tmp_path: Path) -> None:
    """On a GPU, the log shows 400 tokens and 1.59 % of padding for this hybrid model."""
    hybrid, windows = create_plan("hybrid", tmp_path), create_plan("sliding window", tmp_path)
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
def test_the_size_of_a_batch_depends_on_the_gpu(
    gpu: Gpu, batch: tuple[int, int], tmp_path: Path
) -> None:
    scheduler = create_plan("sliding window", tmp_path, gpu=gpu).config.scheduler_config
    assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == batch
    # A window contains the tokens of two batches: the next batch is prepared while one is computed.
    assert scheduler.async_scheduling


def test_a_model_that_vllm_cannot_build_is_refused_with_its_message(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"heads \(32\).* \(3\)"):
        create_plan("GQA", tmp_path, tensor_parallel=3)


def test_settings_that_need_a_tokenizer_are_ignored(tmp_path: Path) -> None:
    plan = create_plan("GQA", tmp_path, REASONING_PARSER="qwen3")
    assert plan.bytes_per_token == RECORDED_MODELS["GQA"].token


@pytest.fixture(scope="module")
def executor_layers() -> dict[str, Any]:
    """Start an executor for each model in a separate process, since they change global state."""
    environ = {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    ran = run_command(
        {**HOME, **environ}, sys.executable, "-m", "support.engine.layers", *TEXT_MODELS
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_MODELS)
def test_a_started_executor_has_the_planned_layers(
    name: str, executor_layers: dict[str, Any]
) -> None:
    found = executor_layers[name]
    assert found["made"] == found["planned"]
    assert bool(found["made"]) is (RECORDED_MODELS[name].token > 0)
