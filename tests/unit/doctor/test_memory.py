"""The memory of models on GPUs and on this machine, and estimates of weights with known results.

tests/contract/release tests which pools have enough memory for which context.
"""

import functools
from collections.abc import Callable
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
    describe_directory,
    only_finding,
    options,
)
from support.models import configs
from support.tables.models import RECORDED_MODELS

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level
from worker.doctor.gpus import Fit, GpuChoice, GpuType, parse_choice
from worker.doctor.memory import GpuJudge, SizeRange, check_memory, estimate_weight_bytes
from worker.engine.cache_plan import KvCachePlan
from worker.engine.machine import Gpu, Machine
from worker.process.memory import GIB

ONE = Machine(cpu=False, gpus=(Gpu("", 0),))
NO, DOUBTFUL, UNKNOWN, SHORTER, FITS = Fit.NO, Fit.DOUBTFUL, Fit.UNKNOWN, Fit.SHORTER, Fit.FITS

MakeCandidate = Callable[..., Candidate]
MakeJudge = Callable[..., GpuJudge]


@pytest.fixture(scope="module")
def recorded_candidate(tmp_path_factory: pytest.TempPathFactory) -> MakeCandidate:
    folder = tmp_path_factory.mktemp("recorded")
    places = {name: model.write(folder / name) for name, model in RECORDED_MODELS.items()}

    def make(name: str, gpus: int = 1, **settings: str) -> Candidate:
        place = places[name]
        machine = Machine(cpu=False, gpus=ONE.gpus * gpus)
        engine = options(machine).parse_engine_settings({"MODEL": str(place), **settings})
        return Candidate(engine.arguments, describe_directory(place))

    return make


@pytest.fixture(scope="module")
def judge(recorded_candidate: MakeCandidate) -> MakeJudge:
    """Return a function that creates the judge of a recorded model, once for all tests."""

    @functools.cache
    def make(name: str, gpus: int = 1, **settings: str) -> GpuJudge:
        return GpuJudge([recorded_candidate(name, gpus, **settings)])

    return make


def gpu_with(gib: float) -> GpuChoice:
    return GpuChoice("one", (GpuType("one", "one", gib, 90),))


# A model for each combination of types of tensors.
@pytest.mark.parametrize("name", ["dense", "AWQ", "FP8", "NVFP4", "embedder"])
def test_the_size_of_weights_is_computed_exactly_from_the_headers(
    name: str, recorded_candidate: MakeCandidate
) -> None:
    model, candidate = RECORDED_MODELS[name], recorded_candidate(name)
    assert (candidate.snapshot.directory / "model.safetensors").stat().st_blocks * 512 < 100_000
    # A few scales in 32 bits are counted as if they were loaded in 16, like other floats.
    loaded = model.weight_bytes - 2 * model.tensors.get("F32", 0)
    found = estimate_weight_bytes(
        candidate, candidate.cache_plan(gpu=parse_choice("A40").smallest_gpu)
    )
    assert found.low == found.high == loaded
    assert candidate.snapshot.weights_size > model.weight_bytes


@functools.cache
def cache_plan(dtype: str) -> KvCachePlan:
    return candidate(CPU, RECORDED_MODELS["GQA"].config, DTYPE=dtype).cache_plan()


ELEMENTS = configs.LLAMA_3_1_8B_ELEMENTS
FP8 = configs.LLAMA_3_1_8B | {"quantization_config": {"quant_method": "fp8"}}
EXPERTS = {"ENABLE_EXPERT_PARALLEL": "1", "DATA_PARALLEL_SIZE": "2"}
HALF, WHOLE = "bfloat16", "float32"


@pytest.mark.parametrize(
    ("dtype", "tensors", "config", "settings", "low", "high"),
    [
        *((HALF, {kind: 10}, {}, {}, 20, 20) for kind in ("BF16", "F32", "F16")),
        *((WHOLE, {kind: 10}, {}, {}, 40, 40) for kind in ("BF16", "F32", "F16")),
        # Quantised tensors stay as they are.
        (HALF, {"F8_E4M3": 1000, "I32": 100, "U8": 10, "F32": 1}, FP8, {}, 1412, 1412),
        # Without headers the sizes come from vLLM's layers, or from the files if they are
        # quantised.
        (HALF, None, {}, {}, ELEMENTS * 2, ELEMENTS * 2),
        (WHOLE, None, {}, {}, ELEMENTS * 4, ELEMENTS * 4),
        (WHOLE, None, FP8, {}, ELEMENTS * 2, ELEMENTS * 2),
        # Weights that are quantised during loading are between both sizes, unless the checkpoint is
        # already quantised.
        (HALF, {"BF16": 1000}, {}, {"QUANTIZATION": "fp8"}, 1000, 2000),
        (HALF, {"BF16": 1000}, {}, {"QUANTIZATION": "mxfp4"}, 500, 2000),
        (HALF, {"BF16": 1000}, FP8, {"QUANTIZATION": "fp8"}, 2000, 2000),
        # Experts may be divided among replicas.
        (HALF, {"BF16": 1000}, {}, EXPERTS, 1000, 2000),
    ],
    ids=str,
)
def test_the_size_of_weights_depends_on_the_type_that_they_are_loaded_in(
    *,
    dtype: str,
    tensors: dict[str, int] | None,
    config: dict[str, Any],
    settings: dict[str, Any],
    low: int,
    high: int,
) -> None:
    machine = TWO_RTX_4090 if "DATA_PARALLEL_SIZE" in settings else ONE
    model = candidate(machine, config or configs.LLAMA_3_1_8B, DTYPE=dtype, **settings)
    changed = replace(model, snapshot=replace(model.snapshot, tensors=tensors))
    assert estimate_weight_bytes(changed, cache_plan(dtype)) == SizeRange(low, high)


# The rest fits into the smaller size, so the estimates are no cause.
FP8_DOUBT = (
    "QUANTIZATION=fp8_per_tensor converts weights while they are loaded, "
    "which leaves between 7.5 GiB and 15.0 GiB"
)


@pytest.mark.parametrize(
    ("name", "gpus", "settings", "choice", "fit", "why"),
    [
        ("GQA", 1, {}, "ADA_24", SHORTER, "131072 bytes a token"),
        ("GQA", 1, {}, "ADA_24x2", FITS, "65536 bytes a token"),
        # Each GPU has half of the layers, and half of the cache.
        ("GQA", 2, {"PIPELINE_PARALLEL_SIZE": "2"}, "ADA_24x2", FITS, "weights 7.5 GiB"),
        # Only two of these GPUs are used: three can't share 28 heads.
        ("AWQ", 1, {}, "ADA_24x3", FITS, "28672 bytes a token"),
        # A size that was set is not changed.
        ("AWQ", 4, {"TENSOR_PARALLEL_SIZE": "3"}, "ADA_24x3", NO, "heads (28)"),
        ("GQA", 4, {"DATA_PARALLEL_SIZE": "2"}, "ADA_24", NO, "divide it among 2 GPUs"),
        ("GQA", 1, {}, "AMPERE_16", NO, "weights 15.0 GiB"),
        # Weights that are quantized while they are loaded may fit.
        ("GQA", 1, {"QUANTIZATION": "fp8_per_tensor"}, "AMPERE_16", DOUBTFUL, FP8_DOUBT),
        # A context that was set must fit.
        ("GQA", 1, {"MAX_MODEL_LEN": "32768"}, "ADA_24", FITS, ""),
        ("GQA", 1, {"MAX_MODEL_LEN": "65536"}, "ADA_24", NO, "43952 tokens would fit"),
        ("GQA", 1, {"GPU_MEMORY_UTILIZATION": "0.6"}, "ADA_24", NO, "weights 15.0 GiB"),
    ],
    ids=str,
)
def test_settings_and_the_number_of_gpus_change_the_verdict(
    name: str,
    gpus: int,
    settings: dict[str, str],
    choice: str,
    fit: Fit,
    *,
    why: str,
    judge: MakeJudge,
) -> None:
    verdict = judge(name, gpus, **settings).worst_verdict(parse_choice(choice))
    assert verdict.fit is fit
    assert why in verdict.reason


def test_pipeline_and_tensor_parallelism_allow_the_same_concurrency(judge: MakeJudge) -> None:
    two = parse_choice("ADA_24x2")
    pipeline = judge("GQA", 2, PIPELINE_PARALLEL_SIZE="2").worst_verdict(two)
    assert pipeline.concurrency == judge("GQA").worst_verdict(two).concurrency


def test_more_gpus_are_proposed_if_one_is_too_small(judge: MakeJudge) -> None:
    gqa, one, two = judge("GQA"), parse_choice("ADA_24"), parse_choice("ADA_24x2")
    assert gqa.verdicts(one) == [gqa.worst_verdict(one), gqa.worst_verdict(two)]
    # No other number is proposed if one GPU is enough, or if the settings choose the number.
    for fitting in (judge("AWQ"), judge("GQA", 4, TENSOR_PARALLEL_SIZE="2")):
        (only,) = fitting.verdicts(one)
        assert only.choice == one


def test_a_model_too_large_for_any_number_of_gpus_has_one_verdict(judge: MakeJudge) -> None:
    (only,) = judge("GQA").verdicts(gpu_with(2.0))
    assert (only.fit, only.choice) == (NO, gpu_with(2.0))
    assert "weights 15.0 GiB" in only.reason


def test_a_model_that_can_not_be_built_without_a_gpu_is_unknown() -> None:
    """vLLM supports sparse attention on GPUs only."""
    verdict = GpuJudge([candidate(ONE, configs.SPARSE)]).worst_verdict(parse_choice("HOPPER_141x8"))
    assert (verdict.fit, verdict.reason) == (
        UNKNOWN,
        "vLLM can't build the model here: Sparse Attention is not supported on CPU.",
    )


@pytest.mark.parametrize(("gib", "fit"), [(15.0, NO), (17.5, DOUBTFUL), (19.0, SHORTER)])
def test_a_shortage_within_the_margin_of_error_is_doubtful(
    gib: float, fit: Fit, judge: MakeJudge
) -> None:
    # 15 GiB of weights and 2 GiB set aside, plus or minus 10 percent.
    verdict = judge("GQA").worst_verdict(gpu_with(gib))
    assert verdict.fit is fit
    estimated = "; too close to tell, because the rest is estimated"
    assert verdict.reason.endswith(estimated) is (fit is DOUBTFUL)


def test_each_cause_of_a_doubt_has_words_of_its_own(judge: MakeJudge) -> None:
    both = judge("GQA", QUANTIZATION="fp8_per_tensor").worst_verdict(gpu_with(9.5))
    assert both.fit is DOUBTFUL
    assert "15.0 GiB; too close to tell" in both.reason
    experts = judge("MoE", 4, **EXPERTS).worst_verdict(parse_choice("AMPERE_48x2"))
    assert experts.fit is DOUBTFUL
    divided = "ENABLE_EXPERT_PARALLEL divides experts among the replicas, which leaves between "
    assert divided in experts.reason


def test_weights_of_unknown_size_make_the_verdict_unknown(
    recorded_candidate: MakeCandidate,
) -> None:
    known = recorded_candidate("GQA")
    unknown = replace(known, snapshot=replace(known.snapshot, weights=(), tensors=None))
    (verdict,) = GpuJudge([unknown]).verdicts(parse_choice("AMPERE_16"))
    assert (verdict.fit, verdict.context) == (UNKNOWN, 0)


def test_gpus_too_old_for_a_quantization_are_refused(judge: MakeJudge) -> None:
    old = GpuChoice("T0", (GpuType("T0", "T0", 80.0, 70), GpuType("A40", "A40", 80.0, 86)))
    verdict = judge("AWQ").worst_verdict(old)
    assert verdict.fit is NO
    assert verdict.reason.endswith("needs compute capability 7.5: T0 lacks it")


@pytest.mark.parametrize(
    ("min_model_len", "fit"), [("43952", SHORTER), ("43953", DOUBTFUL), ("80000", NO)]
)
def test_a_context_below_the_minimum_does_not_fit(
    min_model_len: str, fit: Fit, judge: MakeJudge
) -> None:
    gqa = replace(judge("GQA"), min_model_len=int(min_model_len))
    assert gqa.worst_verdict(parse_choice("ADA_24")).fit is fit


@pytest.mark.parametrize(("share", "fit"), [("0.01", DOUBTFUL), ("0.001", NO)])
def test_an_embedder_takes_part_of_the_gpu(
    share: str, fit: Fit, recorded_candidate: MakeCandidate
) -> None:
    model = recorded_candidate("AWQ")
    embedder = recorded_candidate("embedder", RUNNER="pooling", GPU_MEMORY_UTILIZATION=share)
    assert GpuJudge([model]).worst_verdict(parse_choice("ADA_24")).fit is FITS
    # A hundredth of 24 GB is enough for the embedder's weights; it needs no cache.
    assert GpuJudge([model, embedder]).worst_verdict(parse_choice("ADA_24")).fit is fit


# This machine, which is simulated

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
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
    short = CONFIG | {"max_position_embeddings": 8192}
    assert check_machine("", config=short, min_model_len=100000).level is OK


@pytest.mark.parametrize(
    ("machine", "config", "words", "level", "word"),
    [
        # vLLM has sparse attention on GPUs only.
        (
            H100,
            configs.SPARSE,
            "",
            Level.UNKNOWN,
            "vLLM can't build the model here: Sparse Attention",
        ),
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


def test_weights_of_unknown_size_are_unknown_on_this_machine() -> None:
    known = candidate()
    unknown = replace(known, snapshot=replace(known.snapshot, weights=(), tensors=None))
    assert only_finding(check_memory([unknown], RTX_4090, 1024, GIB)).level is Level.UNKNOWN


def test_only_as_many_gpus_are_used_as_the_number_of_heads_allows() -> None:
    assert candidate(TWO_RTX_4090).tensor_parallel_size(2) == 2
    assert candidate(THREE).tensor_parallel_size(3) == 2
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
    found = check_machine("TENSOR_PARALLEL_SIZE=2", CPU)
    assert "weights 29.9 GiB + a cache of 100.0 GiB" in found.text


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
