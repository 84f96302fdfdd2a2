"""The doctor's arithmetic, on models whose figures are known."""

from dataclasses import replace
from typing import Any

import pytest
from support.models import configs as models

from worker.doctor import memory
from worker.doctor.memory import GIB, Demand, Range, Split
from worker.engine.model_config import ModelShape

Config = dict[str, Any]

WHOLE = Split()

LLAMA = ModelShape(
    layers=32,
    full_layers=32,
    heads=32,
    kv_heads=8,
    head_size=128,
    latent=False,
    bounded=True,
    element_bytes=2,
    length=131072,
    longest=131072,
    length_key="max_position_embeddings",
)
DEEPSEEK = replace(
    LLAMA, layers=61, full_layers=61, heads=128, kv_heads=128, head_size=576, latent=True
)
# Every second layer sees the last tokens only.
GPT_OSS = replace(LLAMA, layers=24, full_layers=12, heads=64, head_size=64)
# Three of four layers keep a state in place of a cache.
HYBRID = replace(
    LLAMA, layers=48, full_layers=12, heads=16, kv_heads=2, head_size=256, bounded=False
)


def token(
    shape: ModelShape,
    split: Split = WHOLE,
    cache: str = "auto",
    config: Config = models.LLAMA_3_1_8B,
) -> Range:
    return memory.token(shape, split, cache, config)


@pytest.mark.parametrize(("shape", "expected"), [(LLAMA, 131072), (DEEPSEEK, 70272)])
def test_a_token_takes_what_its_layers_keep(shape: ModelShape, expected: int) -> None:
    assert token(shape) == Range(expected, expected)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (Split(tensor=2), 131072 / 2),
        (Split(pipeline=2), 131072 / 2),
        (Split(tensor=2, pipeline=4), 131072 / 8),
        # Each GPU has a head of its own, though there are fewer heads than GPUs.
        (Split(tensor=16), 131072 / 8),
    ],
)
def test_the_cache_is_divided_among_gpus(split: Split, expected: float) -> None:
    assert token(LLAMA, split) == Range(expected, expected)


def test_a_compressed_cache_is_whole_on_every_gpu_of_a_layer() -> None:
    assert token(DEEPSEEK, Split(tensor=8)) == token(DEEPSEEK)


@pytest.mark.parametrize(
    ("cache", "element_bytes", "share"),
    [("auto", 4, 2), ("fp8", 2, 0.5), ("fp8_e5m2", 4, 0.5), ("bfloat16", 4, 1)],
)
def test_the_type_of_the_cache_counts(cache: str, element_bytes: int, share: float) -> None:
    computed = replace(LLAMA, element_bytes=element_bytes)
    assert token(computed, cache=cache).high == 131072 * share


def test_a_checkpoint_may_bring_the_type_of_its_cache() -> None:
    own = {"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8}}}
    assert token(LLAMA, config=own).high == 131072 / 2


def test_of_a_cache_in_an_unknown_type_only_a_lower_bound_is_reported() -> None:
    found = token(LLAMA, cache="nvfp4")
    assert found.low < 131072 / 2
    assert found.high is None


def test_layers_with_a_window_make_a_range() -> None:
    assert token(GPT_OSS) == Range(24576, 49152)
    assert token(replace(LLAMA, full_layers=0)) == Range(0, 131072)


def test_models_that_keep_something_else_have_no_upper_bound() -> None:
    assert token(HYBRID) == Range(24576, None)


def loaded(config: Config = models.LLAMA_3_1_8B, **changed: Any) -> Range:
    values = {"size": 0, "tensors": None, "element_bytes": 2, "target": "", **changed}
    return memory.weights(config=config, **values)


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("stored", ["BF16", "F32", "F16"])
def test_floats_take_what_they_are_loaded_in(stored: str, element_bytes: int) -> None:
    elements = models.LLAMA_3_1_8B_ELEMENTS
    expected = elements * element_bytes
    found = loaded(tensors={stored: elements}, element_bytes=element_bytes)
    assert found == Range(expected, expected)


@pytest.mark.parametrize(("dtype", "expected"), [("auto", 2), ("bfloat16", 2), ("float32", 4)])
def test_an_element_of_an_unknown_model_takes_what_dtype_says(dtype: str, expected: int) -> None:
    assert memory.dtype_bytes(dtype) == expected


def test_quantised_tensors_stay_as_they_are() -> None:
    tensors = {"F8_E4M3": 1000, "I32": 100, "U8": 10, "F32": 1}
    assert loaded(tensors=tensors).high == 1000 + 400 + 10 + 2


def test_without_headers_the_size_of_the_files_counts() -> None:
    assert loaded(size=16 * GIB).high == 16 * GIB
    assert loaded(size=16 * GIB, element_bytes=4).high == 32 * GIB
    assert loaded({"torch_dtype": "float32"}, size=16 * GIB).high == 8 * GIB
    assert loaded(models.DEEPSEEK_V3, size=16 * GIB, element_bytes=4).high == 16 * GIB


def test_quantising_while_loading_makes_a_range() -> None:
    tensors = {"BF16": 1000}
    assert loaded(tensors=tensors, target="fp8") == Range(1000, 2000)
    assert loaded(tensors=tensors, target="mxfp4") == Range(500, 2000)


def test_the_longest_text_is_what_the_rest_of_the_memory_holds() -> None:
    weights = 16 * GIB
    demand = Demand(Range(weights, weights), Range(131072, 131072), reserve=2 * GIB)
    longest = demand.longest(24 * GIB)
    assert longest
    needed = demand.total(longest).high
    one_more = demand.total(longest + memory.BLOCK).high
    assert needed
    assert one_more
    assert needed <= 24 * GIB * memory.FITS < one_more
    assert demand.longest(17 * GIB) == 0


def test_the_longest_text_of_an_unknown_cache_is_unknown() -> None:
    assert Demand(Range(0, 0), Range(10, None)).longest(GIB) is None


def test_what_is_offloaded_does_not_count() -> None:
    demand = Demand(Range(10 * GIB, 10 * GIB), Range(0, 0), offloaded=4 * GIB)
    assert demand.total(1).high == 6 * GIB


@pytest.mark.parametrize(
    ("needed", "card"), [(10, 16), (15, 24), (21, 32), (40, 48), (70, 80), (500, None)]
)
def test_a_card_is_proposed_that_holds_it(needed: int, card: int | None) -> None:
    assert memory.card_for(needed * GIB, 0.95) == card
