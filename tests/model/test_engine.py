"""Tests of the engine's slots, limits, seeds, compile keys, summary and memory estimates."""

import asyncio
import json
import logging
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model.conftest import Ask
from support.doctor import describe_directory
from support.engine.requests import count_length_finishes, text_of, wait_until_idle
from support.engine.scripted import failure
from transformers import AutoModelForCausalLM

from worker.app import Worker
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Level
from worker.doctor.memory import SizeRange, check_memory, estimate_weight_bytes
from worker.engine.machine import Gpu, Machine
from worker.engine.options import Options
from worker.engine.run.description import summary_line
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.start import launch
from worker.logs.reader import JSONConverter
from worker.process.memory import GIB
from worker.settings import Settings

MESSAGES = [{"role": "user", "content": "Hi"}]
LONG: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}
BEAM = {**LONG, "use_beam_search": True, "n": 4}
# The answer stops before its maximum length.
SHORT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello!"}],
    "sampling_params": {"temperature": 0, "max_tokens": 100},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["raw", "beam", "list", "openai"])
async def test_a_cancelled_job_frees_its_slot(
    worker: Worker, demo_engine: InProcessEngine, ask: Ask, path: str, stream: bool
) -> None:
    body = {"messages": MESSAGES, **LONG, "stream": stream}
    payload = {
        "raw": {"messages": MESSAGES, "sampling_params": LONG, "stream": stream},
        "beam": {"prompt": "Hi", "sampling_params": BEAM, "stream": stream},
        "list": {"prompts": ["Hi"] * 20, "sampling_params": LONG, "stream": stream},
        "openai": {"openai_route": "/v1/chat/completions", "openai_input": body},
    }[path]
    before = count_length_finishes(demo_engine)

    async def consume() -> None:
        async for _ in worker.handle({"id": "job-1", "input": payload}):
            pass

    task = asyncio.create_task(consume())
    async with asyncio.timeout(60):
        while not demo_engine.unfinished_request_count:
            await asyncio.sleep(0.001)
    task.cancel()
    await wait_until_idle(demo_engine)
    # vLLM counts a finished request before it returns the end of a later request.
    await ask(**SHORT)
    after = count_length_finishes(demo_engine)
    await ask(**SHORT)
    assert count_length_finishes(demo_engine) == after, "a step of a search is a request"
    assert after == before or path == "beam"


# Limits of vLLM's own queue:

TOKEN: dict[str, Any] = {"max_tokens": 1}
CHAT = {"openai_route": "/v1/chat/completions"}


@pytest.mark.parametrize(
    ("payload", "limit"),
    [
        ({"prompt": "Hi", "sampling_params": TOKEN}, "reqs"),
        ({**CHAT, "openai_input": {"messages": MESSAGES, **TOKEN, "stream": True}}, "tokens"),
    ],
    ids=["raw", "chat, streamed"],
)
async def test_a_request_beyond_the_queue_limit_fails_its_job_as_retryable(
    demo_engine: InProcessEngine,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    payload: dict[str, Any],
    limit: str,
) -> None:
    config = demo_engine._client.vllm_config.scheduler_config
    with monkeypatch.context() as full:
        full.setattr(config, f"max_num_queued_{limit}", 0)
        error = failure(await ask(**payload))
    assert (error["code"], error["retryable"]) == (503, True)
    assert "try again" in error["message"]
    assert "error" not in (await ask(**payload))[-1], "there is room again"


SEEDS = range(5)
# All prompts together exceed one step, so one of them is split into two chunks.
PROMPT_TOKENS = 700


async def test_seeded_answers_are_reproducible_with_chunked_prefill(
    ask: Ask, demo_engine: InProcessEngine
) -> None:
    config = demo_engine._client.vllm_config.scheduler_config
    assert config.enable_chunked_prefill
    assert PROMPT_TOKENS * len(SEEDS) > config.max_num_batched_tokens > PROMPT_TOKENS

    async def answer(seed: int) -> str:
        # Prompts that are not in the cache after other tests.
        prompt = [(7 * seed + 100 + 3 * number) % 500 + 5 for number in range(PROMPT_TOKENS)]
        params = {"max_tokens": 20, "temperature": 1.0, "seed": seed}
        return text_of(await ask(prompt=prompt, sampling_params=params))

    core = demo_engine._healer.core
    together = await asyncio.gather(*map(answer, SEEDS))
    # A dead engine would be restarted and would still answer.
    assert demo_engine._healer.core is core
    assert together == [await answer(seed) for seed in SEEDS]
    assert len(set(together)) > 1


async def test_an_engine_compiles_nothing_for_log_probabilities(
    ask: Ask, inductor_cache: Path
) -> None:
    """vLLM's own worker pauses for seconds at the first log probabilities of each core."""
    (whole,) = await ask(prompt="Hello", sampling_params={"max_tokens": 1, "logprobs": 2})
    assert len(whole["choices"][0]["logprobs"]) == 1
    assert not list(inductor_cache.rglob("*.so"))  # noqa: ASYNC240 - a small directory


@pytest.mark.usefixtures("demo_engine")
def test_a_log_record_of_vllm_with_a_traceback_becomes_one_object() -> None:
    # If this fails, vLLM formats the lines of a record differently: adapt worker/logs/reader.py.
    handler, *_ = logging.getLogger("vllm").handlers  # pytest has added a handler
    with pytest.raises(ValueError, match="one") as failed:
        int("one")
    error = (failed.type, failed.value, failed.tb)
    record = logging.getLogRecordFactory()(
        "vllm.v1", logging.ERROR, "core.py", 7, "failed: %s", ("a\n\nb",), error
    )
    read = json.loads(JSONConverter().feed(f"{handler.format(record)}\n".encode()))
    first, *rest = read["message"].split("\n")
    assert read["level"] == "ERROR"
    assert first.endswith(" [core.py:7] failed: a")
    assert rest[:3] == ["", "b", "Traceback (most recent call last):"]
    assert rest[-1].startswith("ValueError: invalid literal")


# Keys of compiled code:

CPU = Machine(cpu=True)
H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * 2**30)


def key(*hashes: str, on: Machine = CPU) -> str:
    configurations = [SimpleNamespace(compute_hash=partial(str, one)) for one in hashes]
    return launch.compiled_code_key(configurations, on)


def test_a_compile_key_is_readable_and_a_valid_file_name() -> None:
    name = key("a", on=Machine(cpu=False, gpus=(H100, H100)))
    assert re.fullmatch(r"vllm-0\.[^_/]+_torch-2\.[^_/]+_2x-NVIDIA-H100-80GB-HBM3_\w{16}", name)


def test_everything_that_affects_compiled_code_changes_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = (Machine(cpu=False, gpus=(H100,) * count) for count in (1, 2))
    keys = [key("a"), key("b"), key("a", "b"), key("b", "a"), key("a", on=one), key("a", on=two)]
    # The path of the cache is not part of the key.
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/elsewhere")
    monkeypatch.setenv("VLLM_ENABLE_STARTUP_PLAN", "1")
    assert key("a") == keys[0]
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "0")
    keys.append(key("a"))
    # Keys from the models alone, before the configurations are read.
    keys += [launch.model_info_cache_key(models) for models in (["a"], ["b"], ["a", "b"])]
    assert len(set(keys)) == len(keys)


def test_cpus_with_different_features_have_different_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpus = tmp_path / "cpuinfo"
    monkeypatch.setattr(launch, "CPU_INFO", cpus)
    keys = []
    for line in ("flags\t\t: fpu avx2", "flags\t\t: fpu avx512f", "Features\t: asimd sve"):
        cpus.write_text(f"processor\t: 0\ncpu MHz\t\t: {len(line)}\n{line}\n")
        keys.append(key("a"))
    assert len(set(keys)) == len(keys)
    cpus.write_text("processor\t: 0\ncpu MHz\t\t: 0\nflags\t\t: fpu avx2\n")
    assert key("a") == keys[0]


# The startup's summary of the engine, and the doctor's estimates:


def split_summary(line: str) -> dict[str, str]:
    return dict(part.split(": ", 1) for part in line.split("; "))


def test_one_line_summarizes_the_engine(demo_engine: InProcessEngine, settings: Settings) -> None:
    config = demo_engine._client.vllm_config
    arguments = replace(demo_engine._arguments, config=config)
    slots = config.scheduler_config.max_num_seqs
    found = split_summary(summary_line(arguments, 300, slots))
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
    chosen = split_summary(summary_line(arguments, "auto", 128))
    assert chosen["concurrency"] == "160 jobs (auto: 128 in the engine, 32 waiting)"
    for package in ("python 3.", "vllm", "torch 2.", "runpod 1."):
        assert package in versions


def candidate(settings: Settings, **options: str) -> Candidate:
    name = settings.model_name
    engine = Options().parse_engine_settings({"MODEL": name, **options}).arguments
    return Candidate(engine, describe_directory(Path(name)))


def read_cache_label(engine: InProcessEngine, label: str) -> int:
    (info,) = (one for one in engine.metrics.collect() if one.name == "vllm:cache_config_info")
    return int(info.samples[0].labels[label])


def test_the_planned_bytes_per_token_match_the_engine(
    demo_engine: InProcessEngine, settings: Settings
) -> None:
    tokens = read_cache_label(demo_engine, "num_gpu_blocks") * read_cache_label(
        demo_engine, "block_size"
    )
    token = read_cache_label(demo_engine, "kv_cache_memory_bytes") / tokens
    assert candidate(settings).cache_plan().bytes_per_token == token


def test_the_doctor_accepts_only_contexts_that_fit_the_cache_of_vllm(
    demo_engine: InProcessEngine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gigabytes = read_cache_label(demo_engine, "kv_cache_memory_bytes") // GIB
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", str(gigabytes))
    tokens = read_cache_label(demo_engine, "kv_cache_size_tokens")
    block = read_cache_label(demo_engine, "block_size")
    # The core reserves one block.
    for context, expected in ((tokens - block, Level.OK), (tokens + 1, Level.FAIL)):
        model = candidate(settings, MAX_MODEL_LEN=str(context))
        findings = check_memory([model], Machine(cpu=True), 1024, 64 * GIB)
        assert {finding.topic: finding.level for finding in findings} == {
            "memory": Level.OK,
            "cache": expected,
        }


def test_the_estimate_of_the_weights_matches_the_loaded_model(
    demo_model: Path, settings: Settings
) -> None:
    for dtype in ("float32", "bfloat16"):
        loaded = AutoModelForCausalLM.from_pretrained(demo_model, dtype=getattr(torch, dtype))
        taken = sum(tensor.numel() * tensor.element_size() for tensor in loaded.parameters())
        model = candidate(settings, DTYPE=dtype)
        assert estimate_weight_bytes(model, model.cache_plan()) == SizeRange(taken, taken)
