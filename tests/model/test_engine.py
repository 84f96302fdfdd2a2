"""What the engine leaves, limits and computes: slots, seeds, keys; and what is said of it."""

import asyncio
import json
import logging
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model.conftest import Ask
from support.engine.requests import ended_by_length, text_of, until_idle
from support.engine.scripted import failure
from transformers import AutoModelForCausalLM

from worker.app import Worker
from worker.doctor import this_machine
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Level
from worker.doctor.memory import Range, weights
from worker.engine import compile_key
from worker.engine.description import summary
from worker.engine.machine import Gpu, Machine
from worker.engine.options import Options
from worker.engine.run.inprocess import InProcessEngine
from worker.logs.reader import Lines
from worker.process.estimates import GIB
from worker.settings import Settings
from worker.store import Places, Wanted
from worker.store.hub import locate

MESSAGES = [{"role": "user", "content": "Hi"}]
LONG: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}
BEAM = {**LONG, "use_beam_search": True, "n": 4}
# Its answer ends by itself, before its length.
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
    before = ended_by_length(demo_engine)

    async def consume() -> None:
        async for _ in worker.handle({"id": "job-1", "input": payload}):
            pass

    task = asyncio.create_task(consume())
    async with asyncio.timeout(60):
        while not demo_engine.unfinished_requests:
            await asyncio.sleep(0.001)
    task.cancel()
    await until_idle(demo_engine)
    # vLLM counts a request before it hands over the end of a later one.
    await ask(**SHORT)
    after = ended_by_length(demo_engine)
    await ask(**SHORT)
    assert ended_by_length(demo_engine) == after, "a step of a search is a request"
    assert after == before or path == "beam"


# vLLM's own limits of its queue:

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
async def test_a_request_beyond_the_queue_fails_its_job_as_retryable(
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


TOGETHER = range(5)
# All together they are longer than a step, so that one is computed in two of them.
PROMPT_TOKENS = 700


async def test_a_seed_holds_for_prompts_in_parts(ask: Ask, demo_engine: InProcessEngine) -> None:
    config = demo_engine._client.vllm_config.scheduler_config
    assert config.enable_chunked_prefill
    assert PROMPT_TOKENS * len(TOGETHER) > config.max_num_batched_tokens > PROMPT_TOKENS

    async def answer(seed: int) -> str:
        # Prompts that no other test has left in the cache.
        prompt = [(7 * seed + 100 + 3 * number) % 500 + 5 for number in range(PROMPT_TOKENS)]
        params = {"max_tokens": 20, "temperature": 1.0, "seed": seed}
        return text_of(await ask(prompt=prompt, sampling_params=params))

    core = demo_engine._healer.core
    together = await asyncio.gather(*map(answer, TOGETHER))
    # An engine that died would be started again, and the answers would come.
    assert demo_engine._healer.core is core
    assert together == [await answer(seed) for seed in TOGETHER]
    assert len(set(together)) > 1


async def test_an_engine_compiles_nothing_for_log_probabilities(ask: Ask, compiled: Path) -> None:
    """vLLM's own worker halts for seconds, at the first of them in each core."""
    (whole,) = await ask(prompt="Hello", sampling_params={"max_tokens": 1, "logprobs": 2})
    assert len(whole["choices"][0]["logprobs"]) == 1
    assert not list(compiled.rglob("*.so"))  # noqa: ASYNC240 - a small directory


@pytest.mark.usefixtures("demo_engine")
def test_a_record_of_vllms_log_with_a_traceback_becomes_one_object() -> None:
    # If it doesn't, vLLM begins or ends a record's lines in another way: worker/logs/reader.py.
    handler, *_ = logging.getLogger("vllm").handlers  # pytest has added its own
    with pytest.raises(ValueError, match="one") as failed:
        int("one")
    error = (failed.type, failed.value, failed.tb)
    record = logging.getLogRecordFactory()(
        "vllm.v1", logging.ERROR, "core.py", 7, "failed: %s", ("a\n\nb",), error
    )
    read = json.loads(Lines().feed(f"{handler.format(record)}\n".encode()))
    first, *rest = read["message"].split("\n")
    assert read["level"] == "ERROR"
    assert first.endswith(" [core.py:7] failed: a")
    assert rest[:3] == ["", "b", "Traceback (most recent call last):"]
    assert rest[-1].startswith("ValueError: invalid literal")


# The keys of compiled code:

CPU = Machine(cpu=True)
H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * 2**30)


def key(*hashes: str, on: Machine = CPU) -> str:
    configurations = [SimpleNamespace(compute_hash=partial(str, one)) for one in hashes]
    return compile_key.key_of_engines(configurations, on)


def test_a_key_can_be_read_and_is_a_files_name() -> None:
    name = key("a", on=Machine(cpu=False, gpus=(H100, H100)))
    assert re.fullmatch(r"vllm-0\.[^_/]+_torch-2\.[^_/]+_2x-NVIDIA-H100-80GB-HBM3_\w{16}", name)


def test_what_changes_compiled_code_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (Machine(cpu=False, gpus=(H100,) * count) for count in (1, 2))
    keys = [key("a"), key("b"), key("a", "b"), key("b", "a"), key("a", on=one), key("a", on=two)]
    # The cache's place is not in it.
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/elsewhere")
    monkeypatch.setenv("VLLM_ENABLE_STARTUP_PLAN", "1")
    assert key("a") == keys[0]
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "0")
    keys.append(key("a"))
    # Before the configurations are read, by the models alone.
    keys += [compile_key.key_of_models(models) for models in (["a"], ["b"], ["a", "b"])]
    assert len(set(keys)) == len(keys)


def test_a_cpu_has_the_key_of_its_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpus = tmp_path / "cpuinfo"
    monkeypatch.setattr(compile_key, "CPUS", cpus)
    keys = []
    for line in ("flags\t\t: fpu avx2", "flags\t\t: fpu avx512f", "Features\t: asimd sve"):
        cpus.write_text(f"processor\t: 0\ncpu MHz\t\t: {len(line)}\n{line}\n")
        keys.append(key("a"))
    assert len(set(keys)) == len(keys)
    cpus.write_text("processor\t: 0\ncpu MHz\t\t: 0\nflags\t\t: fpu avx2\n")
    assert key("a") == keys[0]


# What a start logs of its engine, and what the doctor estimates


def parts(line: str) -> dict[str, str]:
    return dict(part.split(": ", 1) for part in line.split("; "))


def test_one_line_summarizes_the_engine(demo_engine: InProcessEngine, settings: Settings) -> None:
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
    return Candidate.of(Options().parse({"MODEL": name, **options}).arguments, snapshot)


def reported(engine: InProcessEngine, label: str) -> int:
    (info,) = (one for one in engine.metrics.collect() if one.name == "vllm:cache_config_info")
    return int(info.samples[0].labels[label])


def test_a_token_takes_what_vllm_says(demo_engine: InProcessEngine, settings: Settings) -> None:
    tokens = reported(demo_engine, "num_gpu_blocks") * reported(demo_engine, "block_size")
    token = reported(demo_engine, "kv_cache_memory_bytes") / tokens
    assert candidate(settings).plan().token_bytes == token


def test_space_is_estimated_as_by_vllm(
    demo_engine: InProcessEngine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gigabytes = reported(demo_engine, "kv_cache_memory_bytes") // GIB
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", str(gigabytes))
    tokens = reported(demo_engine, "kv_cache_size_tokens")
    block = reported(demo_engine, "block_size")
    # One block is the core's own.
    for context, expected in ((tokens - block, Level.OK), (tokens + 1, Level.FAIL)):
        model = candidate(settings, MAX_MODEL_LEN=str(context))
        findings = this_machine.check([model], Machine(cpu=True), 1024, 64 * GIB)
        assert {finding.topic: finding.level for finding in findings} == {
            "memory": Level.OK,
            "cache": expected,
        }


def test_weights_take_what_the_loaded_model_takes(demo_model: Path, settings: Settings) -> None:
    for dtype in ("float32", "bfloat16"):
        loaded = AutoModelForCausalLM.from_pretrained(demo_model, dtype=getattr(torch, dtype))
        taken = sum(tensor.numel() * tensor.element_size() for tensor in loaded.parameters())
        model = candidate(settings, DTYPE=dtype)
        assert weights(model, model.plan()) == Range(taken, taken)
