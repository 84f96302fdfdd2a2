"""Tests that every key of a request to vLLM has a bound that vLLM's GPU runner can process.

If a new release of vLLM adds a key, a test fails here: add the key to a row of ``worker.limits``,
or state below why only the size of the body limits it.

Values that exceed the arrays of vLLM's GPU runner kill the engine. The CPU runner is a different
one, so these tests call the functions of the GPU runner directly, with arrays like its own.
"""

import inspect
import reprlib
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np
import pytest
import vllm.envs
from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS, SamplingParams
from vllm.tasks import PoolingTask
from vllm.v1.worker.gpu.sample import bad_words, logit_bias, logprob, penalties
from vllm.v1.worker.gpu.sample.states import SamplingStates
from vllm.v1.worker.gpu.states import RequestState

from worker.dialects.table import ROUTES
from worker.engine.options import Options
from worker.engine.run.requests.limits import check_bad_words
from worker.engine.run.sampling import plan_job_sampling
from worker.engine.run.server import VllmServer
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.limits.parameters import BOUNDS, MAX_INT32, MAX_INT64, ListBound, NumberMapBound
from worker.limits.table import LIMITS
from worker.media.contents import MediaLimits
from worker.media.fetcher import WebFetcher
from worker.media.loader import MediaLoader
from worker.routes.vllm import ROUTES as VLLM_ROUTES

SWITCH = "a switch, or one of few words: vLLM checks it"
NAME = "a name: looked up or passed on as it is, as long as 64,000 characters"
NUMBER = "a number that vLLM checks, and that no array on a GPU holds"

SHAPES = {row.path: row.shape for row in VLLM_ROUTES}

UNBOUNDED = {
    **dict.fromkeys(
        """
        add_generation_prompt add_special_tokens background continue_final_message echo embed_dtype
        enable_response_messages endianness ignore_eos include_reasoning include_stop_str_in_output
        mm_payload parallel_tool_calls prompt_cache_retention reasoning_effort
        return_assistant_tokens_mask return_mm_kwargs return_prompt_text return_token_ids
        return_token_offsets return_token_strs return_tokens_as_token_ids return_weight_versions
        service_tier skip_special_tokens spaces_between_special_tokens store stream truncation
        truncation_side use_activation use_beam_search watermarking
        """.split(),
        SWITCH,
    ),
    **dict.fromkeys(
        """
        cache_salt model previous_response_id prompt_cache_key safety_identifier session_id task
        user
        """.split(),
        NAME,
    ),
    **dict.fromkeys(
        """
        dimensions max_completion_tokens max_output_tokens max_tokens_per_doc max_tokens_per_query
        max_tool_calls min_p presence_penalty frequency_penalty prompt_logprobs
        routed_experts_prompt_start stream_interval temperature top_n top_p truncate_prompt_tokens
        """.split(),
        NUMBER,
    ),
    "encoding_format": "one of two words",
    "priority": "dropped, unless the engine schedules by priority",
    "request_id": "dropped",
    "chat_template": "refused, unless the operator trusts callers with templates",
    "data": "only a plugin of the operator's reads it",
    "include": "a list of few words, as long as any list",
    "metadata": "returned as it is",
    "padding": "prompts become as long as the context, as they may be anyway",
    "prompt": "of a response: the name of a stored prompt, which vLLM has none of",
    "prompt_cache_options": "an object of words, which the response returns",
    "reasoning": "an object of switches",
    "stream_options": "an object of switches",
    "suffix": "vLLM refuses it",
    "thinking": "an object of a switch and a number",
}


@pytest.fixture(scope="module")
def keys() -> dict[str, frozenset[str]]:
    """Return the body keys of each route of vLLM's server, for generating and pooling models."""
    pooling = SimpleNamespace(
        get_pooling_task=lambda _: "embed",
        hf_config=SimpleNamespace(num_labels=1),
        score_type="late-interaction",
        max_model_len=1,
    )
    found: dict[str, frozenset[str]] = {}
    arguments = Options().parse_engine_settings({"MODEL": "org/name"}).arguments.vllm_args
    media = MediaLoader(MediaLimits(), WebFetcher(), ["image"])
    for config, tasks in ((None, ("generate",)), (pooling, get_args(PoolingTask))):
        client: Any = SimpleNamespace(model_config=config, errored=False)
        server = VllmServer(client, arguments, tasks, media)
        found |= {path: keys for path in SHAPES if (keys := server.body_keys(path))}
    return found


def test_every_key_is_either_bounded_or_needs_no_bound(keys: dict[str, frozenset[str]]) -> None:
    bounded = frozenset().union(*(limit.keys for limit in LIMITS))
    unknown = {
        path: sorted(names - bounded - UNBOUNDED.keys() - {*SHAPES[path].text_keys})
        for path, names in keys.items()
    }
    assert {path: names for path, names in unknown.items() if names} == {}
    assert not UNBOUNDED.keys() & bounded


def test_every_route_with_a_body_has_a_shape_with_its_text_keys(
    keys: dict[str, frozenset[str]],
) -> None:
    assert keys.keys() == SHAPES.keys()
    forwarded = {
        route.path
        for route in ROUTES
        if route.method == "POST" and not (route.handler or route.generate)
    }
    assert forwarded == SHAPES.keys()
    for path, shape in SHAPES.items():
        # A release may lack one of the keys.
        assert {*shape.text_keys} & keys[path], path


CONTEXT = 1_048_576


class ByteTokenizer:
    """A tokenizer in which each byte is a token."""

    max_token_id = 255

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())


class SpaceTokenizer:
    """A tokenizer in which a letter after a space is a different token."""

    max_token_id = 511

    def encode(self, text: str, **_: Any) -> list[int]:
        first, *others = text.strip().encode()
        return [first + 256 * text.startswith(" "), *others]


def create_tensor(dtype: str) -> Any:
    """Return a stand-in for one of the runner's tensors, with one row of numbers."""

    def stage_write(_: int, __: int, values: Any) -> None:
        np.fromiter(values, dtype)

    return SimpleNamespace(np=np.zeros(1, dtype), stage_write=stage_write)


def create_tensors(**dtypes: str) -> Any:
    names = {name: dtype for dtype, listed in dtypes.items() for name in listed.split()}
    return SimpleNamespace(**{name: create_tensor(dtype) for name, dtype in names.items()})


def add_request(params: Any) -> None:
    """Add a request to each state object of the runner, as in the first step of the request."""
    state = create_tensors(
        int32="prompt_len prefill_len total_len all_token_ids num_computed_tokens"
    )
    state.total_len.stage_write_elem = state.num_computed_tokens.stage_write_elem = lambda *_: None
    state.free_indices, state.req_id_to_index, state.index_to_req_id = [0], {}, {}
    state.max_seq_len = state.num_computed_prefill_tokens = np.zeros(1, np.int32)
    state.num_computed_tokens_np = np.zeros(1, np.int32)
    state.draft_tokens, state.num_speculative_steps = [SimpleNamespace(zero_=lambda: None)], 1
    RequestState.add_request(state, "id", CONTEXT, [1] * CONTEXT, 0, params.max_tokens)

    sampled = create_tensors(float32="temperature top_p min_p", int32="top_k", int64="seeds")
    sampled.vocab_size, sampled.seeds_set = 1_000, np.zeros(1, bool)
    sampled.num_logprobs = np.zeros(1, np.int32)
    SamplingStates.add_request(sampled, 0, params)

    biased = create_tensors(
        int32="num_allowed_token_ids allowed_token_ids num_logit_bias logit_bias_token_ids min_lens"
        " num_stop_token_ids stop_token_ids restore_when_all_masked",
        float32="logit_bias",
    )
    biased.prompt_len_np, biased.use_logit_bias = np.full(1, CONTEXT, np.int32), np.zeros(1, bool)
    # Before vLLM 0.31, the length of the prompt was an argument.
    passed = "prompt_len" in inspect.signature(logit_bias.LogitBiasState.add_request).parameters
    logit_bias.LogitBiasState.add_request(biased, 0, *[CONTEXT] * passed, params)

    words = create_tensors(int32="num_bad_words bad_word_token_ids bad_word_offsets")
    bad_words.BadWordsState.add_request(words, 0, params)

    penalized = create_tensors(float32="repetition_penalty frequency_penalty presence_penalty")
    penalized.use_penalty, penalized._new_penalties_reqs = np.zeros(1, bool), []
    penalties.PenaltiesState.add_request(penalized, 0, params)

    logprob.LogprobTokenIdsState.add_request(
        create_tensors(int32="num_token_ids token_ids"), 0, params
    )


def plan_params(params: dict[str, Any]) -> Any:
    """Return vLLM's parameters for a raw job, including the stop tokens of the model."""
    job = RawJob.from_input({"prompt": "Hi", "sampling_params": params})
    result = plan_job_sampling(
        job.sampling_params, {"max_tokens": 16}, is_streamed=False, limit=CONTEXT
    ).params
    result.update_from_generation_config({"eos_token_id": list(range(1_000, 1_010))}, 999)
    tokenizer: Any = ByteTokenizer()
    check_bad_words(result.bad_words, tokenizer)
    result.update_from_tokenizer(ByteTokenizer())
    return result


# 1,024 tokens in total: each word counts twice, with and without a leading space, each time with
# the
# same length.
WORDS = [letter * 256 for letter in "abcd"]


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": MAX_INT64, "min_tokens": CONTEXT},
        {"seed": MAX_INT64},
        {"seed": -MAX_INT64 - 1},
        {"top_k": MAX_INT32},
        {"allowed_token_ids": [5] * 5_000},
        {"allowed_token_ids": list(range(1_024))},
        {"logit_bias": {str(number): (-1) ** number * 100 for number in range(1_024)}},
        {"stop_token_ids": list(range(64)), "min_tokens": 1},
        {"logprob_token_ids": list(range(128))},
        {"bad_words": [str(number) for number in range(64)]},
        {"bad_words": WORDS},
        {"repetition_penalty": 10, "presence_penalty": 2, "frequency_penalty": -2},
    ],
    ids=reprlib.repr,
)
def test_values_within_the_bounds_fit_the_runner(params: dict[str, Any]) -> None:
    add_request(plan_params(params))


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": MAX_INT32 + 1},
        {"seed": MAX_INT64 + 1},
        {"allowed_token_ids": [5] * 1_025},
        {"logit_bias": dict.fromkeys(range(1_025), 1.0)},
        {"stop_token_ids": list(range(129)), "min_tokens": 1},
        {"logprob_token_ids": list(range(129))},
        {"bad_words": [*WORDS, "e"]},
    ],
    ids=reprlib.repr,
)
def test_values_beyond_the_bounds_raise_in_the_runner(params: dict[str, Any]) -> None:
    sampling = SamplingParams(**params)
    sampling.update_from_tokenizer(ByteTokenizer())
    with pytest.raises((OverflowError, ValueError)):
        add_request(sampling)


def test_no_bound_exceeds_the_constants_of_the_runner() -> None:
    most = {
        "allowed_token_ids": logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS,
        "logit_bias": logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS,
        # The model's own stop tokens are added.
        "stop_token_ids": logit_bias.MAX_NUM_STOP_TOKEN_IDS // 2,
        "logprob_token_ids": MAX_LOGPROB_TOKEN_IDS,
        # Each word is stored a second time with a leading space.
        "bad_words": vllm.envs.VLLM_MAX_NUM_BAD_WORDS // 2,
    }
    for name, count in most.items():
        bound = BOUNDS[name]
        assert isinstance(bound, ListBound | NumberMapBound)
        assert bound.max_items <= count


@pytest.mark.parametrize(
    ("tokenizer", "words", "count"),
    [
        (ByteTokenizer, [*WORDS, "e"], "1,025"),
        (ByteTokenizer, [str(n) * 30 for n in range(64)], None),
        # A character may be several tokens.
        (SpaceTokenizer, ["é" * 250, "ü" * 250], None),
        # Each word is counted with and without a leading space.
        (SpaceTokenizer, ["a" * 200, "b" * 200, "c" * 200], "1,200"),
    ],
)
def test_bad_words_are_counted_in_tokens(
    tokenizer: type[Any], words: list[str], count: str | None
) -> None:
    message = rf"{count or ''}.* tokens in all, .* at most 1,024"
    with pytest.raises(InvalidInput, match=message) as caught:
        check_bad_words(words, cast("Any", tokenizer()))
    assert caught.value.param == "bad_words"


@pytest.mark.parametrize("words", [["a" * 512], ["a" * 200] * 2, None, "a", [], ["a", 5], {"a": 1}])
def test_bad_words_within_the_bound_pass_and_wrong_types_are_left_to_vllm(words: Any) -> None:
    check_bad_words(words, cast("Any", SpaceTokenizer()))
    check_bad_words(["a" * 5_000], None)


@pytest.mark.parametrize("max_tokens", [CONTEXT + 1, MAX_INT64])
def test_max_tokens_are_cut_to_the_context_and_larger_min_tokens_are_refused(
    max_tokens: int,
) -> None:
    assert plan_params({"max_tokens": max_tokens}).max_tokens == CONTEXT
    with pytest.raises(InvalidInput, match="min_tokens"):
        plan_params({"max_tokens": MAX_INT32, "min_tokens": CONTEXT + 1})
