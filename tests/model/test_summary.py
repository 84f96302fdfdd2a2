"""What a start logs of its engine, and what the doctor estimates, against the real ones."""

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
from worker.engine.summary import summary
from worker.settings import Settings
from worker.store import Places, Wanted
from worker.store.hub import locate

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine


def parts(line: str) -> dict[str, str]:
    return dict(part.split(": ", 1) for part in line.split("; "))


def test_one_line_summarizes_the_engine(demo_engine: "InProcessEngine", settings: Settings) -> None:
    arguments, config = demo_engine._arguments, demo_engine._client.vllm_config
    slots = config.scheduler_config.max_num_seqs
    found = parts(summary(arguments, config, settings.max_concurrency, slots))
    tokens = config.cache_config.num_gpu_blocks * config.cache_config.block_size
    assert tokens > 100_000
    versions = found.pop("versions")
    assert found == {
        "model": Path(settings.model_name).name,
        "from": str(Path(settings.model_name).resolve()),
        "revision": "none",
        "dtype": "float32",
        "quantization": "none",
        "context": "1024 tokens",
        "parallelism": "tensor 1, pipeline 1, data 1",
        "KV cache": f"{tokens} tokens",
        "concurrency": f"300 jobs, {slots} in the engine",
    }
    chosen = parts(summary(arguments, config, "auto", 128))
    assert chosen["concurrency"] == "160 jobs (auto: 128 in the engine, 32 waiting)"
    for package in ("python 3.", "vllm", "torch 2.", "runpod 1."):
        assert package in versions


def candidate(settings: Settings, **options: str) -> Candidate:
    name = settings.model_name
    snapshot = locate(Wanted(name), Places(Path("/nowhere")))
    return Candidate.of(Options().parse({"MODEL": name, **options}), snapshot)


def reported(engine: "InProcessEngine", label: str) -> int:
    (info,) = (one for one in engine.metrics.collect() if one.name == "vllm:cache_config_info")
    return int(info.samples[0].labels[label])


def test_a_token_takes_what_vllm_says(demo_engine: "InProcessEngine", settings: Settings) -> None:
    model = candidate(settings)
    tokens = reported(demo_engine, "num_gpu_blocks") * reported(demo_engine, "block_size")
    token = reported(demo_engine, "kv_cache_memory_bytes") / tokens
    assert model.token(model.split) == Range(token, token)


def test_space_is_estimated_as_by_vllm(demo_engine: "InProcessEngine", settings: Settings) -> None:
    gigabytes = reported(demo_engine, "kv_cache_memory_bytes") // GIB
    space = {"VLLM_CPU_KVCACHE_SPACE": str(gigabytes)}
    tokens = reported(demo_engine, "kv_cache_size_tokens")
    for context, expected in ((int(tokens * 0.9), Level.OK), (int(tokens * 1.2), Level.FAIL)):
        model = candidate(settings, MAX_MODEL_LEN=str(context))
        findings = fit.fits(model, Machine(cpu=True), space, 64 * GIB)
        assert {finding.topic: finding.level for finding in findings} == {
            "memory": Level.OK,
            "cache": expected,
        }


def test_weights_take_what_the_loaded_model_takes(demo_model: Path, settings: Settings) -> None:
    for dtype in ("float32", "bfloat16"):
        loaded = AutoModelForCausalLM.from_pretrained(demo_model, dtype=getattr(torch, dtype))
        taken = sum(tensor.numel() * tensor.element_size() for tensor in loaded.parameters())
        assert candidate(settings, DTYPE=dtype).weights == Range(taken, taken)
