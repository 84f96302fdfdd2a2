"""The doctor's arithmetic, on models whose figures are known."""

from typing import Any

import pytest
from support.models import configs as models

from worker.doctor import memory, shape
from worker.doctor.memory import GIB, Demand, Range, Split

Config = dict[str, Any]
YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
LINEAR = {"rope_scaling": {"type": "linear", "factor": 4.0}}
DYNAMIC = {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}


WHOLE = Split()


def token(config: Config, split: Split = WHOLE, cache: str = "auto", each: int = 2) -> Range:
    attention = shape.attention(config)
    assert attention
    return memory.token(attention, split, each, cache, config)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (models.LLAMA_3_1_8B, 131072),
        (models.QWEN_2_5_7B, 57344),
        (models.DEEPSEEK_V3, 70272),
        (models.FALCON_7B, 2 * 32 * 1 * 64 * 2),
        (models.PHI_3_MINI_128K, 2 * 32 * 32 * 96 * 2),
        (models.seeing(models.QWEN_2_5_7B), 57344),
    ],
)
def test_a_token_takes_what_is_known_of_the_model(config: Config, expected: int) -> None:
    assert token(config) == Range(expected, expected)


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
    assert token(models.LLAMA_3_1_8B, split) == Range(expected, expected)


def test_a_compressed_cache_is_whole_on_every_gpu_of_a_layer() -> None:
    assert token(models.DEEPSEEK_V3, Split(tensor=8)) == token(models.DEEPSEEK_V3)


@pytest.mark.parametrize(
    ("cache", "each", "share"),
    [("auto", 4, 2), ("fp8", 2, 0.5), ("fp8_e5m2", 4, 0.5), ("bfloat16", 4, 1)],
)
def test_the_type_of_the_cache_counts(cache: str, each: int, share: float) -> None:
    assert token(models.LLAMA_3_1_8B, cache=cache, each=each).high == 131072 * share


def test_a_checkpoint_may_bring_the_type_of_its_cache() -> None:
    own = {"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8}}}
    assert token({**models.LLAMA_3_1_8B, **own}).high == 131072 / 2


def test_of_a_cache_in_an_unknown_type_only_a_lower_bound_is_told() -> None:
    found = token(models.LLAMA_3_1_8B, cache="nvfp4")
    assert found.low < 131072 / 2
    assert found.high is None


def test_layers_with_a_window_make_a_range() -> None:
    assert token(models.GPT_OSS_20B) == Range(24576, 49152)
    assert token(models.MISTRAL_7B_V0_1) == Range(0, 131072)


def test_a_window_that_is_wider_than_every_text_is_none() -> None:
    wide = {**models.MISTRAL_7B_V0_1, "sliding_window": 32768}
    assert token(wide) == Range(131072, 131072)


@pytest.mark.parametrize(
    "config",
    [
        models.QWEN_3_NEXT,
        {**models.LLAMA_3_1_8B, "hybrid_override_pattern": "M*M*"},
        {**models.LLAMA_3_1_8B, "num_key_value_heads": [8, 4]},
        {**models.DEEPSEEK_V3, "index_topk": 2048},
        {**models.DEEPSEEK_V3, "model_type": "minicpm3"},
        {**models.LLAMA_3_1_8B, "is_encoder_decoder": True},
    ],
)
def test_models_that_keep_something_else_have_no_upper_bound(config: Config) -> None:
    assert token(config).high is None


@pytest.mark.parametrize("missing", ["num_hidden_layers", "num_attention_heads", "hidden_size"])
def test_without_its_figures_nothing_is_told_of_a_model(missing: str) -> None:
    config = {key: value for key, value in models.LLAMA_3_1_8B.items() if key != missing}
    assert shape.attention(config) is None


def loaded(config: Config = models.LLAMA_3_1_8B, **changed: Any) -> Range:
    asked: dict[str, Any] = {"size": 0, "tensors": None, "dtype": "auto", "quantization": ""}
    return memory.weights(config=config, **{**asked, **changed})


@pytest.mark.parametrize(("dtype", "each"), [("auto", 2), ("bfloat16", 2), ("float32", 4)])
@pytest.mark.parametrize("stored", ["BF16", "F32", "F16"])
def test_floats_take_what_they_are_loaded_in(stored: str, dtype: str, each: int) -> None:
    elements = models.LLAMA_3_1_8B_ELEMENTS
    expected = elements * each
    assert loaded(tensors={stored: elements}, dtype=dtype) == Range(expected, expected)


def test_quantised_tensors_stay_as_they_are() -> None:
    tensors = {"F8_E4M3": 1000, "I32": 100, "U8": 10, "F32": 1}
    assert loaded(tensors=tensors, dtype="float16").high == 1000 + 400 + 10 + 2


def test_without_headers_the_size_of_the_files_counts() -> None:
    assert loaded(size=16 * GIB).high == 16 * GIB
    assert loaded(size=16 * GIB, dtype="float32").high == 32 * GIB
    assert loaded({"torch_dtype": "float32"}, size=16 * GIB).high == 8 * GIB
    assert loaded(models.DEEPSEEK_V3, size=16 * GIB, dtype="float32").high == 16 * GIB


def test_quantising_while_loading_makes_a_range() -> None:
    tensors = {"BF16": 1000}
    assert loaded(tensors=tensors, quantization="fp8") == Range(1000, 2000)
    assert loaded(tensors=tensors, quantization="mxfp4") == Range(500, 2000)


@pytest.mark.parametrize(
    ("config", "default", "most"),
    [
        (models.LLAMA_3_1_8B, 131072, 131072),
        (models.DEEPSEEK_V3, 163840, 163840),
        (models.QWEN_2_5_7B, 32768, 32768),
        (models.QWEN_2_5_7B | YARN, 32768, 32768),
        (models.QWEN_2_5_7B | LINEAR, 131072, 131072),
        (models.QWEN_2_5_7B | DYNAMIC, 65536, 65536),
        (models.QWEN_2_5_7B | {"rope_scaling": {"type": "linear"}}, 32768, 32768),
        (models.QWEN_2_5_7B | {"rope_scaling": {"type": "linear", "factor": "x"}}, 32768, 32768),
        # Gemma 3 names the scaled length itself.
        (models.QWEN_2_5_7B | LINEAR | {"model_type": "gemma3_text"}, 32768, 32768),
        # Short texts are better without the long scaling: it is only used on demand.
        (models.PHI_3_MINI_128K, 4096, 131072),
        (models.seeing(models.QWEN_2_5_7B), 32768, 32768),
        ({"n_positions": 1024}, 1024, 1024),
        ({"max_position_embeddings": 8192, "seq_length": 4096}, 4096, 4096),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072, 131072),
        (models.FALCON_7B, 2048, 0),
    ],
)
def test_the_length_of_a_text_follows_vllms_rules(config: Config, default: int, most: int) -> None:
    length = shape.length(config)
    assert (length.default, length.most) == (default, most)


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


def test_nobody_knows_the_longest_text_of_an_unknown_cache() -> None:
    assert Demand(Range(0, 0), Range(10, None)).longest(GIB) is None


def test_what_is_offloaded_does_not_count() -> None:
    demand = Demand(Range(10 * GIB, 10 * GIB), Range(0, 0), offloaded=4 * GIB)
    assert demand.total(1).high == 6 * GIB


@pytest.mark.parametrize(("needed", "card"), [(10, 16), (15, 24), (40, 48), (70, 80), (500, None)])
def test_a_card_is_proposed_that_holds_it(needed: int, card: int | None) -> None:
    assert memory.card_for(needed * GIB, 0.95) == card
