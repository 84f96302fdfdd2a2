"""The doctor's arithmetic, on models whose figures are known."""

from dataclasses import replace
from typing import Any

import pytest
from support.models import configs as models

from worker.doctor import memory
from worker.doctor.memory import GIB, Demand, Range, Split
from worker.engine.model_config import ModelShape

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
TOKEN = 131072
FP8 = {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8}}


@pytest.mark.parametrize(
    ("shape", "split", "expected"),
    [
        (LLAMA, Split(), Range(TOKEN, TOKEN)),
        (LLAMA, Split(tensor=2), Range(TOKEN / 2, TOKEN / 2)),
        (LLAMA, Split(tensor=2, pipeline=4), Range(TOKEN / 8, TOKEN / 8)),
        # Each GPU has a head of its own, though there are fewer heads than GPUs.
        (LLAMA, Split(tensor=16), Range(TOKEN / 8, TOKEN / 8)),
        # A compressed cache is whole on every GPU of a layer.
        (DEEPSEEK, Split(tensor=8), Range(70272, 70272)),
        # Layers with a window make a range.
        (GPT_OSS, Split(), Range(24576, 49152)),
        (replace(LLAMA, full_layers=0), Split(), Range(0, TOKEN)),
        # What keeps something else has no upper bound.
        (HYBRID, Split(), Range(24576, None)),
    ],
)
def test_a_token_takes_what_layers_keep(shape: ModelShape, split: Split, expected: Range) -> None:
    assert memory.token(shape, split, "auto", models.LLAMA_3_1_8B) == expected


@pytest.mark.parametrize(
    ("cache", "element_bytes", "config", "expected"),
    [
        ("auto", 4, {}, Range(2 * TOKEN, 2 * TOKEN)),
        ("fp8", 2, {}, Range(TOKEN / 2, TOKEN / 2)),
        ("bfloat16", 4, {}, Range(TOKEN, TOKEN)),
        # The checkpoint brings the type of its cache.
        ("auto", 2, {"quantization_config": FP8}, Range(TOKEN / 2, TOKEN / 2)),
        # Of an unknown type there is a lower bound.
        ("nvfp4", 2, {}, Range(TOKEN / 8, None)),
    ],
)
def test_the_type_of_the_cache_counts(
    cache: str, element_bytes: int, config: dict[str, Any], expected: Range
) -> None:
    computed = replace(LLAMA, element_bytes=element_bytes)
    assert memory.token(computed, Split(), cache, config) == expected


ELEMENTS = models.LLAMA_3_1_8B_ELEMENTS


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        *(
            ({"tensors": {stored: ELEMENTS}, "element_bytes": size}, ELEMENTS * size)
            for stored in ("BF16", "F32", "F16")
            for size in (2, 4)
        ),
        # Quantised tensors stay as they are.
        ({"tensors": {"F8_E4M3": 1000, "I32": 100, "U8": 10, "F32": 1}}, 1000 + 400 + 10 + 2),
        # Without headers the size of the files counts.
        ({"size": 16 * GIB}, 16 * GIB),
        ({"size": 16 * GIB, "element_bytes": 4}, 32 * GIB),
        ({"size": 16 * GIB, "config": {"torch_dtype": "float32"}}, 8 * GIB),
        ({"size": 16 * GIB, "config": models.DEEPSEEK_V3, "element_bytes": 4}, 16 * GIB),
    ],
    ids=str,
)
def test_weights_take_what_they_are_loaded_in(changed: dict[str, Any], expected: int) -> None:
    defaults = {"size": 0, "tensors": None, "config": models.LLAMA_3_1_8B, "element_bytes": 2}
    assert memory.weights(target="", **{**defaults, **changed}) == Range(expected, expected)


@pytest.mark.parametrize(("target", "least"), [("fp8", 1000), ("mxfp4", 500)])
def test_quantising_while_loading_makes_a_range(target: str, least: int) -> None:
    found = memory.weights(0, {"BF16": 1000}, models.LLAMA_3_1_8B, 2, target)
    assert found == Range(least, 2000)


@pytest.mark.parametrize(("dtype", "expected"), [("auto", 2), ("bfloat16", 2), ("float32", 4)])
def test_an_element_of_an_unknown_model_takes_what_dtype_says(dtype: str, expected: int) -> None:
    assert memory.dtype_bytes(dtype) == expected


def test_the_longest_text_is_what_the_rest_of_the_memory_contains() -> None:
    weights = 16 * GIB
    demand = Demand(Range(weights, weights), Range(TOKEN, TOKEN), reserve=2 * GIB)
    longest = demand.longest(24 * GIB)
    assert longest
    needed, one_more = (demand.total(longest + more).high or 0 for more in (0, memory.BLOCK))
    assert 0 < needed <= 24 * GIB * memory.FITS < one_more
    assert demand.longest(17 * GIB) == 0
    assert Demand(Range(0, 0), Range(10, None)).longest(GIB) is None


def test_a_card_is_proposed_that_is_large_enough() -> None:
    cards = [memory.card_for(needed * GIB, 0.95) for needed in (10, 15, 70, 500)]
    assert cards == [16, 24, 80, None]
