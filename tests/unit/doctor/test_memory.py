"""Recorded models on GPUs; which pools hold them, with which context: contract/release.

What the arithmetic of weights is besides, on models whose figures are known.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.doctor import CPU, TWO, candidate, options
from support.models import configs
from support.tables.models import RECORDED

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Fit
from worker.doctor.gpus.asked import Choice, choice
from worker.doctor.gpus.pools import GpuType
from worker.doctor.memory import Judge, Range, weights
from worker.engine.cache_plan import CachePlan
from worker.engine.machine import Gpu, Machine
from worker.store import Wanted
from worker.store.hub import locate
from worker.store.places import Places

ONE = Machine(cpu=False, gpus=(Gpu("", 0),))
NO, DOUBTFUL, UNKNOWN, SHORTER, FITS = Fit.NO, Fit.DOUBTFUL, Fit.UNKNOWN, Fit.SHORTER, Fit.FITS

Candidates = Callable[..., Candidate]
Judging = Callable[..., Judge]


@pytest.fixture(scope="module")
def of_recorded(tmp_path_factory: pytest.TempPathFactory) -> Candidates:
    folder = tmp_path_factory.mktemp("recorded")
    places = {name: model.write(folder / name) for name, model in RECORDED.items()}

    def made(name: str, gpus: int = 1, **settings: str) -> Candidate:
        place = places[name]
        machine = Machine(cpu=False, gpus=ONE.gpus * gpus)
        engine = options(machine).parse({"MODEL": str(place), **settings})
        return Candidate.of(engine.arguments, locate(Wanted(str(place)), Places(place)))

    return made


@pytest.fixture(scope="module")
def judge(of_recorded: Candidates) -> Judging:
    """Judge one recorded model; a model is built once for all tests."""

    @functools.cache
    def judging(name: str, gpus: int = 1, **settings: str) -> Judge:
        return Judge([of_recorded(name, gpus, **settings)])

    return judging


def one_of(gib: float) -> Choice:
    return Choice("one", (GpuType("one", "one", gib, 90),))


@pytest.mark.parametrize("name", RECORDED)
def test_weights_are_those_of_the_headers_to_the_byte(name: str, of_recorded: Candidates) -> None:
    model, candidate = RECORDED[name], of_recorded(name)
    assert (candidate.snapshot.place / "model.safetensors").stat().st_blocks * 512 < 100_000
    # A few scales in 32 bits are counted as if they were loaded in 16, like other floats.
    loaded = model.stored - 2 * model.tensors.get("F32", 0)
    found = weights(candidate, candidate.plan(gpu=choice("A40").gpu))
    assert found.low == found.high == loaded
    assert candidate.snapshot.weights_size > model.stored


@functools.cache
def planned(dtype: str) -> CachePlan:
    return candidate(CPU, RECORDED["GQA"].config, DTYPE=dtype).plan()


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
        # Without headers vLLM's own layers count, and of quantised weights the files.
        (HALF, None, {}, {}, ELEMENTS * 2, ELEMENTS * 2),
        (WHOLE, None, {}, {}, ELEMENTS * 4, ELEMENTS * 4),
        (WHOLE, None, FP8, {}, ELEMENTS * 2, ELEMENTS * 2),
        # What is quantised while it is loaded takes something between; no checkpoint is twice.
        (HALF, {"BF16": 1000}, {}, {"QUANTIZATION": "fp8"}, 1000, 2000),
        (HALF, {"BF16": 1000}, {}, {"QUANTIZATION": "mxfp4"}, 500, 2000),
        (HALF, {"BF16": 1000}, FP8, {"QUANTIZATION": "fp8"}, 2000, 2000),
        # Experts may be divided among replicas.
        (HALF, {"BF16": 1000}, {}, EXPERTS, 1000, 2000),
    ],
    ids=str,
)
def test_weights_take_what_they_are_loaded_in(
    *,
    dtype: str,
    tensors: dict[str, int] | None,
    config: dict[str, Any],
    settings: dict[str, Any],
    low: int,
    high: int,
) -> None:
    model = candidate(ONE if "DATA_PARALLEL_SIZE" not in settings else TWO, DTYPE=dtype, **settings)
    snapshot = replace(model.snapshot, tensors=tensors)
    changed = replace(model, snapshot=snapshot, config=config or model.config)
    assert weights(changed, planned(dtype)) == Range(low, high)


@pytest.mark.parametrize(
    ("name", "gpus", "settings", "on", "fit", "why"),
    [
        ("GQA", 1, {}, "ADA_24", SHORTER, "131072 bytes a token"),
        ("GQA", 1, {}, "ADA_24x2", FITS, "65536 bytes a token"),
        # Each has half of the layers, and half of what they keep of a text.
        ("GQA", 2, {"PIPELINE_PARALLEL_SIZE": "2"}, "ADA_24x2", FITS, "weights 7.5 GiB"),
        # Of GPUs that can't share 28 heads as many are used as can.
        ("AWQ", 1, {}, "ADA_24x3", FITS, "28672 bytes a token"),
        # A size that was set is not changed.
        ("AWQ", 4, {"TENSOR_PARALLEL_SIZE": "3"}, "ADA_24x3", NO, "heads (28)"),
        ("GQA", 4, {"DATA_PARALLEL_SIZE": "2"}, "ADA_24", NO, "divide it among 2 GPUs"),
        ("GQA", 1, {}, "AMPERE_16", NO, "weights 15.0 GiB"),
        # Weights that are quantized while they are loaded may fit.
        ("GQA", 1, {"QUANTIZATION": "fp8_per_tensor"}, "AMPERE_16", DOUBTFUL, "close to tell"),
        # A context that was set must fit.
        ("GQA", 1, {"MAX_MODEL_LEN": "32768"}, "ADA_24", FITS, ""),
        ("GQA", 1, {"MAX_MODEL_LEN": "65536"}, "ADA_24", NO, "43952 tokens would fit"),
        ("GQA", 1, {"GPU_MEMORY_UTILIZATION": "0.6"}, "ADA_24", NO, "weights 15.0 GiB"),
    ],
    ids=str,
)
def test_settings_and_the_number_of_gpus_count(
    name: str, gpus: int, settings: dict[str, str], on: str, fit: Fit, *, why: str, judge: Judging
) -> None:
    verdict = judge(name, gpus, **settings).verdict(choice(on))
    assert verdict.fit is fit
    assert why in verdict.why


def test_layers_after_one_another_keep_what_layers_side_by_side_do(judge: Judging) -> None:
    two = choice("ADA_24x2")
    pipeline = judge("GQA", 2, PIPELINE_PARALLEL_SIZE="2").verdict(two)
    assert pipeline.texts == judge("GQA").verdict(two).texts


def test_more_gpus_are_proposed_where_one_does_not_hold_everything(judge: Judging) -> None:
    judging, one, two = judge("GQA"), choice("ADA_24"), choice("ADA_24x2")
    assert judging.verdicts(one) == [judging.verdict(one), judging.verdict(two)]
    # Nor where the settings say how many.
    for enough in (judge("AWQ"), judge("GQA", 4, TENSOR_PARALLEL_SIZE="2")):
        (only,) = enough.verdicts(one)
        assert only.choice == one


def test_a_model_that_no_number_of_gpus_holds_is_judged_once(judge: Judging) -> None:
    (only,) = judge("GQA").verdicts(one_of(2.0))
    assert (only.fit, only.choice) == (NO, one_of(2.0))
    assert "weights 15.0 GiB" in only.why


def test_what_can_not_be_built_without_a_gpu_is_not_known() -> None:
    """vLLM has sparse attention on GPUs only."""
    verdict = Judge([candidate(ONE, configs.SPARSE)]).verdict(choice("HOPPER_141x8"))
    assert (verdict.fit, verdict.why) == (
        UNKNOWN,
        "vLLM can't build the model here: Sparse Attention is not supported on CPU.",
    )


@pytest.mark.parametrize(("gib", "fit"), [(15.0, NO), (17.5, DOUBTFUL), (19.0, SHORTER)])
def test_what_lacks_less_than_the_error_is_in_doubt(gib: float, fit: Fit, judge: Judging) -> None:
    # 15 GiB of weights and 2 set aside, with 10 percent more or less.
    assert judge("GQA").verdict(one_of(gib)).fit is fit


def test_weights_of_unknown_size_are_not_nothing(of_recorded: Candidates) -> None:
    known = of_recorded("GQA")
    unknown = replace(known, snapshot=replace(known.snapshot, weights=(), tensors=None))
    (verdict,) = Judge([unknown]).verdicts(choice("AMPERE_16"))
    assert (verdict.fit, verdict.context) == (UNKNOWN, 0)


def test_gpus_too_old_for_a_quantization_do_not_hold_it(judge: Judging) -> None:
    old = Choice("T0", (GpuType("T0", "T0", 80.0, 70), GpuType("A40", "A40", 80.0, 86)))
    verdict = judge("AWQ").verdict(old)
    assert verdict.fit is NO
    assert verdict.why.endswith("needs compute capability 7.5: not T0")


@pytest.mark.parametrize(("least", "fit"), [("43952", SHORTER), ("43953", DOUBTFUL), ("80000", NO)])
def test_a_start_with_less_than_the_least_is_none(least: str, fit: Fit, judge: Judging) -> None:
    judging = replace(judge("GQA"), floor=int(least))
    assert judging.verdict(choice("ADA_24")).fit is fit


@pytest.mark.parametrize(("share", "fit"), [("0.01", DOUBTFUL), ("0.001", NO)])
def test_an_embedder_takes_part_of_the_gpu(share: str, fit: Fit, of_recorded: Candidates) -> None:
    model = of_recorded("AWQ")
    embedder = of_recorded("embedder", RUNNER="pooling", GPU_MEMORY_UTILIZATION=share)
    assert Judge([model]).verdict(choice("ADA_24")).fit is FITS
    # A hundredth of 24 GB holds its weights; it keeps no cache, for which more would be needed.
    assert Judge([model, embedder]).verdict(choice("ADA_24")).fit is fit
