"""The memory of recorded models on GPUs, and estimates of weights with known results.

tests/contract/release tests which pools have enough memory for which context.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.doctor import CPU, TWO_RTX_4090, candidate, describe_directory, options
from support.models import configs
from support.tables.models import RECORDED_MODELS

from worker.doctor.candidate import Candidate
from worker.doctor.gpus import Fit, GpuChoice, GpuType, parse_choice
from worker.doctor.memory import GpuJudge, SizeRange, estimate_weight_bytes
from worker.engine.cache_plan import KvCachePlan
from worker.engine.machine import Gpu, Machine

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


@pytest.mark.parametrize("name", RECORDED_MODELS)
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
    model = candidate(
        ONE if "DATA_PARALLEL_SIZE" not in settings else TWO_RTX_4090, DTYPE=dtype, **settings
    )
    snapshot = replace(model.snapshot, tensors=tensors, config=config or model.config)
    changed = replace(model, snapshot=snapshot)
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
