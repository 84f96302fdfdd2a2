"""The doctor's estimates against what the real engine, and the real model, take."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM

from worker.doctor import fit
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Level
from worker.doctor.memory import GIB, Range
from worker.engine.machine import Machine
from worker.engine.options import Options
from worker.settings import Settings
from worker.store import Places, Wanted
from worker.store.hub import locate

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine


def candidate(settings: Settings, **options: str) -> Candidate:
    name = settings.model_name
    snapshot = locate(Wanted(name), Places(Path("/nowhere")))
    return Candidate.of(Options().parse({"MODEL": name, **options}), snapshot)


def reported(engine: "InProcessEngine", label: str) -> str:
    """Return what vLLM's metrics report of its cache."""
    (info,) = (one for one in engine.metrics.collect() if one.name == "vllm:cache_config_info")
    return info.samples[0].labels[label]


def test_a_token_takes_what_vllm_divides_its_cache_by(
    engine: "InProcessEngine", settings: Settings
) -> None:
    model = candidate(settings)
    tokens = int(reported(engine, "num_gpu_blocks")) * int(reported(engine, "block_size"))
    token = int(reported(engine, "kv_cache_memory_bytes")) / tokens
    assert model.token(model.split) == Range(token, token)


def test_the_estimated_space_holds_as_many_tokens_as_vllm_says(
    engine: "InProcessEngine", settings: Settings
) -> None:
    space = {"VLLM_CPU_KVCACHE_SPACE": str(int(reported(engine, "kv_cache_memory_bytes")) // GIB)}
    tokens = int(reported(engine, "kv_cache_size_tokens"))
    for context, expected in ((int(tokens * 0.9), Level.OK), (int(tokens * 1.2), Level.FAIL)):
        model = candidate(settings, MAX_MODEL_LEN=str(context))
        found = {
            finding.topic: finding.level
            for finding in fit.fits(model, Machine(cpu=True), space, 64 * GIB)
        }
        assert found == {"memory": Level.OK, "cache": expected}


def test_weights_take_what_the_loaded_model_takes(demo_model: Path, settings: Settings) -> None:
    for dtype in ("float32", "bfloat16"):
        loaded = AutoModelForCausalLM.from_pretrained(demo_model, dtype=getattr(torch, dtype))
        taken = sum(tensor.numel() * tensor.element_size() for tensor in loaded.parameters())
        assert candidate(settings, DTYPE=dtype).weights == Range(taken, taken)
