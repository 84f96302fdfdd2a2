"""What the doctor says of a model's size, on machines that are not here."""

from typing import Any

import pytest
from support.doctor import CPU, H100, LLAMA, RTX_4090, TWO, arguments, candidate, only
from support.models import configs as models

from worker.doctor import fit
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level
from worker.doctor.memory import GIB
from worker.engine.machine import Gpu, Machine

OK, WARN, FAIL, UNKNOWN = Level.OK, Level.WARN, Level.FAIL, Level.UNKNOWN
THREE = Machine(cpu=False, gpus=RTX_4090.gpus * 3)
A40 = Machine(cpu=False, gpus=(Gpu("A40", int(44.4 * GIB)),))
T4 = Machine(cpu=False, gpus=(Gpu("T4", int(14.6 * GIB)),))
SPACE = "VLLM_CPU_KVCACHE_SPACE"
OF_THE_ENVIRONMENT = {SPACE, "MIN_MODEL_LEN"}
# The whole context of the model, as one has to ask for it.
WHOLE = "MAX_MODEL_LEN=131072"
SMALLER = "take a smaller model, or one that is quantised"


def judged(
    words: str, on: Machine = RTX_4090, gib: int = 128, config: Any = models.LLAMA_3_1_8B
) -> Finding:
    """Return the first finding that is not OK, or the last one."""
    given = dict(word.split("=") for word in words.split())
    environ = {name: given.pop(name) for name in OF_THE_ENVIRONMENT & given.keys()}
    findings = list(fit.fits(candidate(on, config, **given), on, environ, gib * GIB))
    return next((found for found in findings if found.level is not OK), findings[-1])


def test_a_model_that_fits_is_reported_with_its_figures() -> None:
    found = judged("MAX_MODEL_LEN=16384")
    assert found.level is OK
    assert "weights 15.0 GiB" in found.text
    assert "cache 2.0 GiB for 16384 tokens (131072 bytes each)" in found.text
    assert "in 22.8 GiB (0.95 of RTX 4090, 24.0 GiB)" in found.text


TWO_OF_THEM = "set TENSOR_PARALLEL_SIZE=2 (with as many GPUs)"


def ways(length: int, gigabytes: int) -> str:
    return f"set MAX_MODEL_LEN={length}, or {TWO_OF_THEM}, or take a GPU with {gigabytes} GB"


SETTLED = "KV_CACHE_MEMORY_BYTES=2147483648"
ON_GPUS: dict[str, tuple[Machine, str, Level, str]] = {
    "too long": (RTX_4090, WHOLE, FAIL, ways(41984, 48)),
    "the first way out": (RTX_4090, "MAX_MODEL_LEN=41984", OK, ""),
    "the second": (TWO, f"TENSOR_PARALLEL_SIZE=2 {WHOLE}", OK, ""),
    "the third": (A40, WHOLE, OK, ""),
    "GPUs that nobody asks for": (TWO, "", OK, ""),
    "close": (RTX_4090, "MAX_MODEL_LEN=49152", WARN, ways(41984, 32)),
    "full of weights": (T4, "MAX_MODEL_LEN=16", FAIL, f"{TWO_OF_THEM}, or take a GPU with 24 GB"),
    "offloaded weights": (RTX_4090, "MAX_MODEL_LEN=65536 CPU_OFFLOAD_GB=8", OK, ""),
    "a settled cache": (RTX_4090, f"MAX_MODEL_LEN=8192 {SETTLED}", OK, ""),
    # The share of the GPU does not count beside it.
    "a large one": (RTX_4090, "MAX_MODEL_LEN=8192 KV_CACHE_MEMORY_BYTES=6227702579", OK, ""),
    "a long one": (RTX_4090, f"MAX_MODEL_LEN=32768 {SETTLED}", FAIL, "set MAX_MODEL_LEN=15360"),
    "a least context": (RTX_4090, "MIN_MODEL_LEN=40000", OK, ""),
}


@pytest.mark.parametrize(("on", "words", "level", "change"), ON_GPUS.values(), ids=ON_GPUS)
def test_weights_and_cache_must_fit(on: Machine, words: str, level: Level, change: str) -> None:
    found = judged(words, on)
    assert (found.level, found.change) == (level, change)


def test_the_least_context_must_fit() -> None:
    assert judged("MIN_MODEL_LEN=100000").level is FAIL
    # It is about the memory: a model with a shorter context has that one.
    shorter = models.LLAMA_3_1_8B | {"max_position_embeddings": 8192}
    assert judged("MIN_MODEL_LEN=100000", config=shorter).level is OK


LONG_WINDOWS = models.MISTRAL_7B_V0_1 | {"max_position_embeddings": 1_000_000}


@pytest.mark.parametrize(
    ("on", "config", "words", "level"),
    [
        (RTX_4090, LONG_WINDOWS, "MAX_MODEL_LEN=1000000", WARN),
        (RTX_4090, models.LLAMA_3_1_8B, f"RUNNER=pooling {WHOLE}", WARN),
        (H100, models.QWEN_3_NEXT, "", UNKNOWN),
        (H100, {"model_type": "unheard-of"}, "", UNKNOWN),
    ],
    ids=["an upper bound alone", "an embedder, perhaps without one", "a state", "unknown"],
)
def test_a_cache_that_is_not_known_exactly_leaves_the_verdict_open(
    on: Machine, config: dict[str, Any], words: str, level: Level
) -> None:
    assert judged(words, on, config=config).level is level


def test_of_several_gpus_as_many_are_used_as_the_heads_allow() -> None:
    assert (candidate(TWO).split.gpus, candidate(THREE).split.gpus) == (2, 2)
    asked = candidate(THREE, TENSOR_PARALLEL_SIZE="3")
    found = only(fit.parallel(asked, THREE))
    assert (found.level, found.change.partition(" to ")[2]) == (FAIL, "one of 1, 2, 4, 8")


def test_a_quantised_checkpoint_is_not_quantised_again() -> None:
    quantised = models.LLAMA_3_1_8B | {"quantization_config": {"quant_method": "fp8"}}
    assert candidate(config=quantised, QUANTIZATION="fp8").weights.exact
    assert not candidate(QUANTIZATION="fp8").weights.exact


# In float32, which the worker chooses without a GPU.
@pytest.mark.parametrize(
    ("gib", "words", "level", "topic", "change"),
    [
        (16, f"{SPACE}=32", FAIL, "memory", SMALLER),
        (64, f"{SPACE}=70", FAIL, "memory", f"set {SPACE}=32"),
        (30, f"{SPACE}=10", FAIL, "memory", SMALLER),
        (128, f"{SPACE}=1 {WHOLE}", FAIL, "cache", f"set MAX_MODEL_LEN=3072, or set {SPACE}=33"),
        (128, f"{SPACE}=33 {WHOLE}", OK, "cache", ""),
        (128, f"{SPACE}=1 MAX_MODEL_LEN=3072", OK, "cache", ""),
        # A space that the machine has not is never proposed.
        (40, f"{SPACE}=1 {WHOLE}", FAIL, "cache", "set MAX_MODEL_LEN=3072"),
    ],
)
def test_on_cpus_space_counts(gib: int, words: str, level: Level, topic: str, change: str) -> None:
    found = judged(words, CPU, gib)
    assert (found.level, found.topic, found.change) == (level, topic, change)


def test_without_gpus_all_parts_of_a_model_share_the_memory() -> None:
    assert "weights 29.9 GiB" in judged(f"TENSOR_PARALLEL_SIZE=2 {SPACE}=100", CPU).text
    assert judged(f"{SPACE}=32", CPU, 64).topic == "cache"


@pytest.mark.parametrize(
    ("gib", "space", "runner", "level", "change"),
    [
        (80, 20, "auto", FAIL, f"set {SPACE}=8"),
        (80, 8, "auto", OK, ""),
        (50, 8, "auto", FAIL, "take smaller models, or only one"),
        # An embedder may keep no cache.
        (90, 20, "pooling", WARN, f"set {SPACE}=13"),
    ],
)
def test_two_caches_add_up(gib: int, space: int, runner: str, level: Level, change: str) -> None:
    engines = [candidate(CPU), candidate(CPU, RUNNER=runner)]
    found = only(fit.together(engines, CPU, {SPACE: str(space)}, gib * GIB))
    assert (found.level, found.change) == (level, change)


def test_engines_on_gpus_and_a_single_one_share_none_of_the_machines_memory() -> None:
    space = {SPACE: "20"}
    assert list(fit.together([candidate(), candidate()], RTX_4090, space, 1)) == []
    assert list(fit.together([candidate(CPU)], CPU, space, 1)) == []


UNSET = "set MAX_MODEL_LEN=131072, or leave it unset"


@pytest.mark.parametrize(
    ("settings", "environ", "level", "change"),
    [
        ({}, {}, FAIL, UNSET),
        ({}, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, WARN, UNSET),
        ({"HF_OVERRIDES": '{"max_position_embeddings": 262144}'}, {}, OK, ""),
    ],
    ids=["fails", "vLLM is set to allow it", "overrides of the configuration"],
)
def test_a_length_beyond_the_models_own(
    settings: dict[str, Any], environ: dict[str, str], level: Level, change: str
) -> None:
    found = only(fit.context(candidate(MAX_MODEL_LEN="200000", **settings), environ))
    assert (found.level, found.change) == (level, change)


def test_a_vllm_for_gpus_needs_one() -> None:
    none, found = Machine(cpu=False), Candidate.of(arguments(CPU), LLAMA)
    assert only(fit.parallel(found, none)).level is FAIL
    assert list(fit.fits(found, none, {}, 64 * GIB)) == []
