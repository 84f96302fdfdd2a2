"""Bounds of sampling parameters are not above what vLLM's runner for GPUs has room for.

What does not fit there ends the engine of a GPU, and the CPU's has another runner. So its own
functions are called here, with rows as it makes them.
"""

import inspect
import reprlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vllm.envs
from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS, SamplingParams
from vllm.v1.worker.gpu.sample import bad_words, logit_bias, logprob, penalties
from vllm.v1.worker.gpu.sample.states import SamplingStates
from vllm.v1.worker.gpu.states import RequestState

from worker.engine.run.generation.sampling import plan
from worker.engine.run.requests.bodies import check_bad_words
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.limits.parameters import BOUNDS, INT32, INT64, Items, Numbers

CONTEXT = 1_048_576


class Letters:
    """A tokenizer in which each byte is a token."""

    max_token_id = 255

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())


class Spaced:
    """A tokenizer in which a space in front makes another token of a letter."""

    max_token_id = 511

    def encode(self, text: str, **_: Any) -> list[int]:
        first, *others = text.strip().encode()
        return [first + 256 * text.startswith(" "), *others]


def row(dtype: str) -> Any:
    """Return one of the runner's tensors: numbers of a type for one request."""

    def stage_write(_: int, __: int, values: Any) -> None:
        np.fromiter(values, dtype)

    return SimpleNamespace(np=np.zeros(1, dtype), stage_write=stage_write)


def rows(**dtypes: str) -> Any:
    names = {name: dtype for dtype, listed in dtypes.items() for name in listed.split()}
    return SimpleNamespace(**{name: row(dtype) for name, dtype in names.items()})


def add(params: Any) -> None:
    """Add a request to each state of the runner, as it does in the step that begins it."""
    state = rows(int32="prompt_len prefill_len total_len all_token_ids num_computed_tokens")
    state.total_len.stage_write_elem = state.num_computed_tokens.stage_write_elem = lambda *_: None
    state.free_indices, state.req_id_to_index, state.index_to_req_id = [0], {}, {}
    state.max_seq_len = state.num_computed_prefill_tokens = np.zeros(1, np.int32)
    state.num_computed_tokens_np = np.zeros(1, np.int32)
    state.draft_tokens = [SimpleNamespace(zero_=lambda: None)]
    RequestState.add_request(state, "id", CONTEXT, [1] * CONTEXT, 0, params.max_tokens)

    sampled = rows(float32="temperature top_p min_p", int32="top_k", int64="seeds")
    sampled.vocab_size, sampled.seeds_set = 1_000, np.zeros(1, bool)
    sampled.num_logprobs = np.zeros(1, np.int32)
    SamplingStates.add_request(sampled, 0, params)

    biased = rows(
        int32="num_allowed_token_ids allowed_token_ids num_logit_bias logit_bias_token_ids min_lens"
        " num_stop_token_ids stop_token_ids restore_when_all_masked",
        float32="logit_bias",
    )
    biased.prompt_len_np, biased.use_logit_bias = np.full(1, CONTEXT, np.int32), np.zeros(1, bool)
    # Before 0.31 it was passed the prompt's length, in place of reading it.
    passed = "prompt_len" in inspect.signature(logit_bias.LogitBiasState.add_request).parameters
    logit_bias.LogitBiasState.add_request(biased, 0, *[CONTEXT] * passed, params)

    words = rows(int32="num_bad_words bad_word_token_ids bad_word_offsets")
    bad_words.BadWordsState.add_request(words, 0, params)

    penalized = rows(float32="repetition_penalty frequency_penalty presence_penalty")
    penalized.use_penalty, penalized._new_penalties_reqs = np.zeros(1, bool), []
    penalties.PenaltiesState.add_request(penalized, 0, params)

    logprob.LogprobTokenIdsState.add_request(rows(int32="num_token_ids token_ids"), 0, params)


def planned(params: dict[str, Any]) -> Any:
    """Return vLLM's parameters of a raw job, with the model's own tokens that end a text."""
    job = RawJob.read({"prompt": "Hi", "sampling_params": params})
    result = plan(job.sampling_params, {"max_tokens": 16}, streamed=False, context=CONTEXT).params
    result.update_from_generation_config({"eos_token_id": list(range(1_000, 1_010))}, 999)
    check_bad_words(result.bad_words, Letters())
    result.update_from_tokenizer(Letters())
    return result


# 1,024 tokens in all: each word twice, with a space in front and without, but of one length.
WORDS = [letter * 256 for letter in "abcd"]


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": INT64, "min_tokens": CONTEXT},
        {"seed": INT64},
        {"seed": -INT64 - 1},
        {"top_k": INT32},
        {"allowed_token_ids": [5] * 5_000},
        {"allowed_token_ids": list(range(300))},
        {"logit_bias": {str(number): (-1) ** number * 100 for number in range(300)}},
        {"stop_token_ids": list(range(64)), "min_tokens": 1},
        {"logprob_token_ids": list(range(128))},
        {"bad_words": [str(number) for number in range(64)]},
        {"bad_words": WORDS},
        {"repetition_penalty": 10, "presence_penalty": 2, "frequency_penalty": -2},
    ],
    ids=reprlib.repr,
)
def test_all_that_is_within_the_bounds_fits_the_runner(params: dict[str, Any]) -> None:
    add(planned(params))


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": INT32 + 1},
        {"seed": INT64 + 1},
        {"allowed_token_ids": [5] * 1_025},
        {"logit_bias": dict.fromkeys(range(1_025), 1.0)},
        {"stop_token_ids": list(range(129)), "min_tokens": 1},
        {"logprob_token_ids": list(range(129))},
        {"bad_words": [*WORDS, "e"]},
    ],
    ids=reprlib.repr,
)
def test_the_runner_raises_what_the_bounds_keep_from_it(params: dict[str, Any]) -> None:
    sampling = SamplingParams(**params)
    sampling.update_from_tokenizer(Letters())
    with pytest.raises((OverflowError, ValueError)):
        add(sampling)


def test_no_bound_is_above_the_constants_of_the_runner() -> None:
    most = {
        "allowed_token_ids": logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS,
        "logit_bias": logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS,
        # Those that end the model's texts are added to them.
        "stop_token_ids": logit_bias.MAX_NUM_STOP_TOKEN_IDS // 2,
        "logprob_token_ids": MAX_LOGPROB_TOKEN_IDS,
        # Each is there with a space in front, too.
        "bad_words": vllm.envs.VLLM_MAX_NUM_BAD_WORDS // 2,
    }
    for name, count in most.items():
        bound = BOUNDS[name]
        assert isinstance(bound, Items | Numbers)
        assert bound.most <= count


@pytest.mark.parametrize(
    ("tokenizer", "words", "count"),
    [
        (Letters, [*WORDS, "e"], "1,025"),
        (Letters, [str(n) * 30 for n in range(64)], None),
        # A character may be several tokens.
        (Spaced, ["é" * 250, "ü" * 250], None),
        # Each is counted with a space in front and without.
        (Spaced, ["a" * 200, "b" * 200, "c" * 200], "1,200"),
    ],
)
def test_bad_words_are_counted_in_tokens(
    tokenizer: type[Any], words: list[str], count: str | None
) -> None:
    message = rf"{count or ''}.* tokens in all, .* at most 1,024"
    with pytest.raises(InvalidInput, match=message) as caught:
        check_bad_words(words, tokenizer())
    assert caught.value.param == "bad_words"


@pytest.mark.parametrize("words", [["a" * 512], ["a" * 200] * 2, None, "a", [], ["a", 5], {"a": 1}])
def test_bad_words_that_fit_pass_and_those_of_a_wrong_type_are_left_to_vllm(words: Any) -> None:
    check_bad_words(words, Spaced())
    check_bad_words(["a" * 5_000], None)


@pytest.mark.parametrize("asked", [CONTEXT + 1, INT64])
def test_max_tokens_beyond_the_context_are_cut_and_no_more_are_the_least(asked: int) -> None:
    assert planned({"max_tokens": asked}).max_tokens == CONTEXT
    with pytest.raises(InvalidInput, match="min_tokens"):
        planned({"max_tokens": INT32, "min_tokens": CONTEXT + 1})
