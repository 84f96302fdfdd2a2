"""Twelve recorded models on the platform's pools: which hold them, with which context."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.doctor import candidate, options
from support.models import configs
from support.tables.models import RECORDED

from worker.doctor.candidate import Candidate
from worker.doctor.gpus.asked import Choice, choice
from worker.doctor.gpus.judge import Judge
from worker.doctor.gpus.pools import GpuType
from worker.doctor.gpus.verdicts import Fit
from worker.engine.machine import Gpu, Machine
from worker.store import Snapshot, Wanted
from worker.store.hub import locate
from worker.store.places import Places

ONE = Machine(cpu=False, gpus=(Gpu("", 0),))
SEVERAL = Machine(cpu=False, gpus=ONE.gpus * 4)
POOLS = "AMPERE_16 AMPERE_24 ADA_24 AMPERE_48 ADA_48_PRO AMPERE_80 ADA_80_PRO HOPPER_141".split()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("recorded")
    return {name: model.write(folder / name) for name, model in RECORDED.items()}


def found(place: Path) -> Snapshot:
    return locate(Wanted(str(place)), Places(place))


def judge(place: Path, on: Machine = ONE, **settings: str) -> Judge:
    engine = options(on).parse({"MODEL": str(place), **settings})
    return Judge([Candidate.of(engine, found(place))])


# The tokens of the longest text that fits on each of the POOLS; 0 if the model doesn't.
CONTEXTS = {
    "dense": [0] + [4096] * 7,
    "GQA": [0, 32272, 43952] + [131072] * 5,
    "MLA": [0] * 3 + [163840] * 5,
    "MoE": [0] * 5 + [40960] * 3,
    "sliding window": [32768] * 8,
    "AWQ": [32768] * 8,
    "FP8": [35696, 85504, 97168] + [131072] * 5,
    "NVFP4": [118048] + [131072] * 7,
    "vision": [0, 25680, 37360] + [131072] * 5,
    "embedder": [512] * 8,
    "hybrid": [0] + [131072] * 7,
    "with adapters": [0, 22032, 33712] + [131072] * 5,
}

# Models, and pools that lack less for them than the estimate may be wrong by.
DOUBTFUL = {("dense", "AMPERE_16"), ("hybrid", "AMPERE_16")}


@pytest.mark.parametrize("name", RECORDED)
def test_the_weights_are_those_of_the_headers_to_the_byte(
    name: str, places: dict[str, Path]
) -> None:
    model = RECORDED[name]
    on_disk = places[name] / "model.safetensors"
    assert on_disk.stat().st_blocks * 512 < 100_000
    candidate = judge(places[name]).models[0]
    # A few scales in 32 bits are counted as if they were loaded in 16, like other floats.
    loaded = model.stored - 2 * model.tensors.get("F32", 0)
    assert candidate.whole_weights.low == candidate.whole_weights.high == loaded
    assert candidate.snapshot.weights_size > model.stored


@pytest.mark.parametrize("name", RECORDED)
def test_a_pool_holds_a_model_with_the_context_that_is_left(
    name: str, places: dict[str, Path]
) -> None:
    judging = judge(places[name], ONE, **RECORDED[name].settings)
    verdicts = [judging.verdict(choice(pool)) for pool in POOLS]
    assert [verdict.context for verdict in verdicts] == CONTEXTS[name]
    own = judging.models[0].shape
    assert own is not None
    for verdict in verdicts:
        doubtful = (name, verdict.choice.name) in DOUBTFUL
        least = Fit.DOUBTFUL if doubtful else Fit.NO
        expected = {0: least, own.length: Fit.FITS}.get(verdict.context, Fit.SHORTER)
        assert verdict.fit is expected
        assert (verdict.texts >= 1) is (verdict.context > 0)


def test_room_that_was_set_aside_for_adapters_is_not_the_caches(places: dict[str, Path]) -> None:
    pool = choice("ADA_24")
    without = judge(places["GQA"]).verdict(pool)
    # In and out of every linear layer, times the rank of 64, four adapters and two bytes.
    block = 3 * 4096 + (4096 + 2048) + (4096 + 4096) + 2 * 4096 + 2 * 14336 + (14336 + 4096)
    adapters = 32 * block * 64 * 4 * 2
    fewer = judge(places["GQA"], ONE, **RECORDED["with adapters"].settings).verdict(pool)
    lost = without.context - fewer.context
    assert abs(lost - adapters / RECORDED["GQA"].token) <= 16


def test_several_gpus_share_weights_and_cache(places: dict[str, Path]) -> None:
    judging = judge(places["GQA"])
    one, two = judging.verdict(choice("ADA_24")), judging.verdict(choice("ADA_24x2"))
    assert (one.fit, two.fit) == (Fit.SHORTER, Fit.FITS)
    assert "65536 bytes a token" in two.why
    assert judging.verdicts(choice("ADA_24")) == [one, two]


def test_what_can_not_be_built_without_a_gpu_is_not_known() -> None:
    """vLLM has sparse attention on GPUs only."""
    quantized = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    sparse = configs.DEEPSEEK_V3 | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "index_topk": 2048,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "quantization_config": quantized | {"weight_block_size": [128, 128]},
    }
    verdict = Judge([candidate(ONE, sparse)]).verdict(choice("HOPPER_141x8"))
    assert (verdict.fit, verdict.why) == (
        Fit.UNKNOWN,
        "vLLM can't build the model without a GPU: Sparse Attention is not supported on CPU.",
    )


def test_more_gpus_are_not_proposed_where_one_holds_everything(places: dict[str, Path]) -> None:
    (only,) = judge(places["AWQ"]).verdicts(choice("ADA_24"))
    assert only.choice == choice("ADA_24")


def test_a_model_that_no_number_of_gpus_holds_is_judged_once(places: dict[str, Path]) -> None:
    tiny = Choice("tiny", (GpuType("tiny", "tiny", 2.0, 90),))
    (only,) = judge(places["GQA"]).verdicts(tiny)
    assert (only.fit, only.choice) == (Fit.NO, tiny)
    assert "weights 15.0 GiB" in only.why


def test_of_gpus_that_can_not_share_the_heads_as_many_are_used_as_can(
    places: dict[str, Path],
) -> None:
    # 28 heads.
    judging = judge(places["AWQ"])
    two, three = judging.verdict(choice("ADA_24x2")), judging.verdict(choice("ADA_24x3"))
    assert (three.fit, three.why) == (Fit.FITS, two.why)


def test_a_size_that_was_set_is_not_changed(places: dict[str, Path]) -> None:
    refused = judge(places["AWQ"], SEVERAL, TENSOR_PARALLEL_SIZE="3").verdict(choice("ADA_24x3"))
    assert refused.fit is Fit.NO
    assert "28" in refused.why


def test_gpus_are_shared_as_the_settings_say(places: dict[str, Path]) -> None:
    one, two = choice("ADA_24"), choice("ADA_24x2")
    alone = judge(places["GQA"]).verdict(one)
    unshared = judge(places["GQA"], SEVERAL, TENSOR_PARALLEL_SIZE="1").verdict(two)
    replicas = judge(places["GQA"], SEVERAL, DATA_PARALLEL_SIZE="2").verdict(two)
    assert alone.context == unshared.context == replicas.context
    missing = judge(places["GQA"], SEVERAL, TENSOR_PARALLEL_SIZE="2").verdict(one)
    assert (missing.fit, missing.why) == (Fit.NO, "the settings divide it among 2 GPUs")


def test_weights_that_are_quantized_while_they_are_loaded_may_fit(places: dict[str, Path]) -> None:
    pool = choice("AMPERE_16")
    assert judge(places["GQA"]).verdict(pool).fit is Fit.NO
    doubtful = judge(places["GQA"], QUANTIZATION="fp8_per_tensor").verdict(pool)
    assert doubtful.fit is Fit.DOUBTFUL


def test_what_lacks_less_than_the_estimate_may_be_wrong_by_is_in_doubt(
    places: dict[str, Path],
) -> None:
    # 15 GiB of weights and 2 set aside, with 10 percent more or less.
    for gib, expected in ((15.0, Fit.NO), (17.5, Fit.DOUBTFUL), (19.0, Fit.SHORTER)):
        one = Choice("one", (GpuType("one", "one", gib, 90),))
        assert judge(places["GQA"]).verdict(one).fit is expected


def test_weights_of_unknown_size_are_not_nothing(places: dict[str, Path]) -> None:
    (known,) = judge(places["GQA"]).models
    unknown = replace(known, snapshot=replace(known.snapshot, weights=(), tensors=None))
    (verdict,) = Judge([unknown]).verdicts(choice("AMPERE_16"))
    assert (verdict.fit, verdict.context) == (Fit.UNKNOWN, 0)


def test_gpus_too_old_for_a_quantization_do_not_hold_it(places: dict[str, Path]) -> None:
    old = Choice("T0", (GpuType("T0", "T0", 80.0, 70), GpuType("A40", "A40", 80.0, 86)))
    verdict = judge(places["AWQ"]).verdict(old)
    assert verdict.fit is Fit.NO
    assert verdict.why.endswith("needs compute capability 7.5: not T0")


def test_a_context_that_was_set_must_fit(places: dict[str, Path]) -> None:
    pool = choice("ADA_24")
    assert judge(places["GQA"], MAX_MODEL_LEN="32768").verdict(pool).fit is Fit.FITS
    refused = judge(places["GQA"], MAX_MODEL_LEN="65536").verdict(pool)
    assert refused.fit is Fit.NO
    assert "43952 tokens would fit" in refused.why


def test_a_start_with_less_than_the_least_context_is_none(places: dict[str, Path]) -> None:
    models = judge(places["GQA"]).models
    for least, expected in (("43952", Fit.SHORTER), ("43953", Fit.DOUBTFUL), ("80000", Fit.NO)):
        judging = Judge(models, {"MIN_MODEL_LEN": least})
        assert judging.verdict(choice("ADA_24")).fit is expected


def test_the_share_of_the_gpus_memory_is_the_one_that_is_set(places: dict[str, Path]) -> None:
    pool = choice("ADA_24")
    assert judge(places["GQA"], GPU_MEMORY_UTILIZATION="0.6").verdict(pool).fit is Fit.NO


@pytest.mark.parametrize(("share", "expected"), [("0.01", Fit.DOUBTFUL), ("0.001", Fit.NO)])
def test_an_embedder_beside_the_model_takes_part_of_the_gpu(
    share: str, expected: Fit, places: dict[str, Path]
) -> None:
    chat, embedder = options(ONE), {"RUNNER": "pooling", "GPU_MEMORY_UTILIZATION": share}
    models = [
        Candidate.of(chat.parse({"MODEL": str(places[name]), **more}), found(places[name]))
        for name, more in (("AWQ", {}), ("embedder", embedder))
    ]
    assert Judge(models[:1]).verdict(choice("ADA_24")).fit is Fit.FITS
    # A hundredth of 24 GB holds its weights; it keeps no cache, for which more would be needed.
    assert Judge(models).verdict(choice("ADA_24")).fit is expected
