"""Findings of the doctor about the size of models, for simulated machines."""

from dataclasses import replace
from typing import Any

import pytest
from support.doctor import (
    CPU,
    H100,
    LLAMA,
    RTX_4090,
    TWO_RTX_4090,
    arguments,
    candidate,
    only_finding,
)
from support.models import configs
from support.tables.models import RECORDED_MODELS

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level
from worker.doctor.memory import check_memory
from worker.engine.machine import Gpu, Machine
from worker.process.memory import GIB

OK, WARN, FAIL, UNKNOWN = Level.OK, Level.WARN, Level.FAIL, Level.UNKNOWN
THREE = Machine(cpu=False, gpus=RTX_4090.gpus * 3)
A40 = Machine(cpu=False, gpus=(Gpu("A40", int(44.4 * GIB)),))
T4 = Machine(cpu=False, gpus=(Gpu("T4", int(14.6 * GIB)),))
SPACE = "VLLM_CPU_KVCACHE_SPACE"
CONFIG = RECORDED_MODELS["GQA"].config
# The whole context of the model, which has to be set explicitly.
WHOLE_CONTEXT = "MAX_MODEL_LEN=131072"
SMALLER = "use a smaller model, or one that is quantized"


def check_machine(
    words: str,
    machine: Machine = RTX_4090,
    gib: int = 128,
    config: Any = CONFIG,
    min_model_len: int = 1024,
) -> Finding:
    """Return the first finding that is not OK, or the last one."""
    settings = dict(word.split("=") for word in words.split())
    findings = list(
        check_memory([candidate(machine, config, **settings)], machine, min_model_len, gib * GIB)
    )
    return next((found for found in findings if found.level is not OK), findings[-1])


def test_a_model_that_fits_is_reported_with_its_figures() -> None:
    found = check_machine("MAX_MODEL_LEN=16384")
    assert found.level is OK
    assert found.text.startswith("RTX 4090: 16384 tokens, concurrency 2; ")
    assert "weights 15.0 GiB + about 2.0 GiB reserved, of 22.8 GiB, 5.8 GiB" in found.text
    assert "(131072 bytes a token)" in found.text


TWO_GPUS = "set TENSOR_PARALLEL_SIZE=2 (with as many GPUs)"
MORE_GPUS = "use more GPUs, or larger ones, for a longer context"


def remedies(length: int, gigabytes: int) -> str:
    return f"set MAX_MODEL_LEN={length}, or {TWO_GPUS}, or use a GPU with {gigabytes} GB"


FIXED_CACHE = "KV_CACHE_MEMORY_BYTES=2147483648"
ON_GPUS: dict[str, tuple[Machine, str, Level, str]] = {
    "too long": (RTX_4090, WHOLE_CONTEXT, FAIL, remedies(47104, 48)),
    "the first remedy": (RTX_4090, "MAX_MODEL_LEN=47104", OK, ""),
    "the second remedy": (TWO_RTX_4090, f"TENSOR_PARALLEL_SIZE=2 {WHOLE_CONTEXT}", OK, ""),
    "the third remedy": (A40, WHOLE_CONTEXT, OK, ""),
    "unused GPUs": (TWO_RTX_4090, "", OK, ""),
    "close": (RTX_4090, "MAX_MODEL_LEN=49152", WARN, remedies(47104, 32)),
    "full of weights": (T4, "MAX_MODEL_LEN=16", FAIL, f"{TWO_GPUS}, or use a GPU with 24 GB"),
    "offloaded weights": (RTX_4090, "MAX_MODEL_LEN=65536 CPU_OFFLOAD_GB=8", OK, ""),
    "a fixed cache": (RTX_4090, f"MAX_MODEL_LEN=8192 {FIXED_CACHE}", OK, ""),
    # The share of the GPU is ignored if the cache has a fixed size.
    "a large fixed cache": (
        RTX_4090,
        "MAX_MODEL_LEN=8192 KV_CACHE_MEMORY_BYTES=6227702579",
        OK,
        "",
    ),
    "a long context with a fixed cache": (
        *(RTX_4090, f"MAX_MODEL_LEN=32768 {FIXED_CACHE}", FAIL),
        "set MAX_MODEL_LEN=15360, or set TENSOR_PARALLEL_SIZE=4 (with as many GPUs)",
    ),
    "a context that fits": (RTX_4090, "", WARN, MORE_GPUS),
}


@pytest.mark.parametrize(("machine", "words", "level", "change"), ON_GPUS.values(), ids=ON_GPUS)
def test_weights_and_cache_must_fit(
    machine: Machine, words: str, level: Level, change: str
) -> None:
    found = check_machine(words, machine)
    assert (found.level, found.change) == (level, change), found.text


def test_the_minimum_context_must_fit() -> None:
    assert check_machine("", min_model_len=40000).level is WARN
    assert check_machine("", min_model_len=100000).level is FAIL
    # The minimum is about memory; a model with a shorter context passes.
    assert (
        check_machine(
            "", config=CONFIG | {"max_position_embeddings": 8192}, min_model_len=100000
        ).level
        is OK
    )


@pytest.mark.parametrize(
    ("machine", "config", "words", "level", "word"),
    [
        # vLLM has sparse attention on GPUs only.
        (H100, configs.SPARSE, "", UNKNOWN, "vLLM can't build the model here: Sparse Attention"),
        (
            CPU,
            RECORDED_MODELS["embedder"].config,
            "RUNNER=pooling",
            OK,
            "the model has no KV cache",
        ),
    ],
)
def test_a_cache_of_unknown_size_makes_the_verdict_unknown(
    machine: Machine, config: dict[str, Any], words: str, level: Level, word: str
) -> None:
    found = check_machine(words, machine, config=config)
    assert (found.level, word in found.text) == (level, True), found.text


def test_the_capability_of_a_local_gpu_is_not_checked() -> None:
    """A local GPU has no capability, since it isn't in the table of the platform's GPUs."""
    found = check_machine("MAX_MODEL_LEN=1024", config=RECORDED_MODELS["AWQ"].config)
    assert (RTX_4090.gpus[0].capability, found.level) == (0, OK), found.text


def test_an_embedder_has_no_minimum_context() -> None:
    main = candidate(RTX_4090, CONFIG)
    embedder = replace(main, engine=replace(main.engine, prefix="EMBEDDING_"))
    first, second = check_memory([main, embedder], RTX_4090, 100_000, GIB)
    assert (first.level, first.topic) == (FAIL, "memory")
    assert (second.level, second.topic) == (WARN, "embedder: memory")


def test_weights_of_unknown_size_make_the_verdict_unknown() -> None:
    known = candidate()
    unknown = replace(known, snapshot=replace(known.snapshot, weights=(), tensors=None))
    assert only_finding(check_memory([unknown], RTX_4090, 1024, GIB)).level is UNKNOWN


def test_only_as_many_gpus_are_used_as_the_number_of_heads_allows() -> None:
    assert (
        candidate(TWO_RTX_4090).tensor_parallel_size(2),
        candidate(THREE).tensor_parallel_size(3),
    ) == (
        2,
        2,
    )
    assert check_machine("", THREE).text.startswith("RTX 4090x2: ")


# Sizes are those of float32, which the worker chooses without a GPU.
@pytest.mark.parametrize(
    ("gib", "space", "words", "level", "topic", "change"),
    [
        (16, 32, "", FAIL, "memory", SMALLER),
        (64, 70, "", FAIL, "memory", f"set {SPACE}=32"),
        (30, 10, "", FAIL, "memory", SMALLER),
        (128, 1, WHOLE_CONTEXT, FAIL, "cache", f"set MAX_MODEL_LEN=3072, or set {SPACE}=33"),
        (128, 33, WHOLE_CONTEXT, OK, "cache", ""),
        (128, 1, "MAX_MODEL_LEN=3072", OK, "cache", ""),
        # A space that exceeds the machine's memory is never proposed.
        (40, 1, WHOLE_CONTEXT, FAIL, "cache", "set MAX_MODEL_LEN=3072"),
    ],
)
def test_the_space_for_the_cache_is_checked_on_cpus(
    gib: int,
    space: int,
    words: str,
    level: Level,
    topic: str,
    change: str,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SPACE, str(space))
    found = check_machine(words, CPU, gib)
    assert (found.level, found.topic, found.change) == (level, topic, change), found.text


@pytest.mark.parametrize(
    ("words", "gib", "reason"),
    [
        ("", 39, "(this machine's memory); too close to tell, because the rest is estimated"),
        ("DTYPE=bfloat16 QUANTIZATION=fp8_per_tensor", 20, "leaves between 7.5 GiB and 15.0 GiB"),
    ],
)
def test_a_doubt_about_the_memory_has_a_reason(
    words: str, gib: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPACE, "10")
    found = check_machine(words, CPU, gib)
    assert (found.level, found.text.endswith(reason)) == (WARN, True), found.text


def test_without_gpus_all_parts_of_a_model_share_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SPACE, "100")
    assert (
        "weights 29.9 GiB + a cache of 100.0 GiB"
        in check_machine("TENSOR_PARALLEL_SIZE=2", CPU).text
    )


@pytest.mark.parametrize(
    ("gib", "space", "second", "level", "change"),
    [
        (80, 20, "GQA", FAIL, f"set {SPACE}=8"),
        (80, 8, "GQA", OK, ""),
        (50, 8, "GQA", FAIL, "use smaller models, or only one"),
        # An embedder has no cache.
        (90, 20, "embedder", OK, ""),
    ],
)
def test_two_caches_add_up(
    gib: int, space: int, second: str, level: Level, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPACE, str(space))
    engines = [candidate(CPU, CONFIG), candidate(CPU, RECORDED_MODELS[second].config)]
    *_, found = check_memory(engines, CPU, 1024, gib * GIB)
    assert found.topic == "memory together"
    assert (found.level, found.change) == (level, change), found.text


def test_a_vllm_build_for_gpus_needs_a_gpu() -> None:
    found = Candidate(arguments(CPU), LLAMA)
    finding = only_finding(check_memory([found], Machine(cpu=False), 1024, 64 * GIB))
    assert (finding.level, finding.topic) == (FAIL, "parallel")
