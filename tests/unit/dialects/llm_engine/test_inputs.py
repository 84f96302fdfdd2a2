"""Inputs in LLM Engine's format: names of parameters, defaults, and lists of prompts."""

from typing import Any

import pytest

from worker.dialects import parse_input
from worker.job import PromptListJob, RawJob

DEFAULTS = {"max_tokens": 20, "temperature": 0.2}
# Parameters with vLLM's names, at the bounds of their ranges.
AS_IN_VLLM: list[dict[str, Any]] = [
    {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 2.0, "top_k": -1, "top_p": 1},
    {"temperature": 1.0, "presence_penalty": 2.0, "frequency_penalty": 0, "top_p": 0.001},
    {"include_stop_str_in_output": False, "skip_special_tokens": True},
]


def parse_completion(**keys: Any) -> RawJob:
    job = parse_input({"format": "llm_engine", "prompt": "Hi", **keys})
    assert isinstance(job, RawJob)
    return job


def parse_list(**keys: Any) -> PromptListJob:
    job = parse_input({"format": "llm_engine", **keys})
    assert isinstance(job, PromptListJob)
    return job


def test_a_prompt_alone_gets_llm_engines_defaults() -> None:
    raw_job = parse_input({"prompt": "Hi", "format": "raw", "sampling_params": DEFAULTS})
    assert parse_completion() == raw_job.model_copy(update={"format": "llm_engine"})


@pytest.mark.parametrize(
    ("sent", "vllm"),
    [
        ({"max_new_tokens": 7}, {"max_tokens": 7}),
        ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"guided_json": {}}, {"structured_outputs": {"json": {}}}),
        ({"guided_regex": "a"}, {"structured_outputs": {"regex": "a"}}),
        ({"guided_choice": ["a"]}, {"structured_outputs": {"choice": ["a"]}}),
        ({"guided_grammar": "a"}, {"structured_outputs": {"grammar": "a"}}),
        ({"return_token_log_probs": True}, {"logprobs": 0}),
        ({"return_token_log_probs": False}, {}),
        *((params, params) for params in AS_IN_VLLM),
    ],
    ids=str,
)
def test_every_parameter_is_translated_into_vllms(
    sent: dict[str, Any], vllm: dict[str, Any]
) -> None:
    assert parse_completion(**sent).sampling_params.vllm_params == DEFAULTS | vllm


def test_nulls_and_the_clients_own_keys_have_no_effect() -> None:
    nulls = dict.fromkeys(("max_new_tokens", "temperature", "stop_sequences", "top_k", "zzz"))
    assert parse_completion(timeout="of any type", request_headers=7, **nulls) == parse_completion()


def test_the_model_the_stream_and_its_chunk_sizes_are_set_on_the_job() -> None:
    keys = {"model": "demo", "stream": True, "max_batch_size": 5, "max_batch_delay_ms": 0}
    assert parse_completion(**keys) == parse_completion().model_copy(update=keys)


def test_the_items_of_a_list_equal_single_completions() -> None:
    keys = {"max_new_tokens": 5, "stop_sequences": ["a"], "return_token_log_probs": True}
    job = parse_list(prompts=["Hi", "Ho"], stream=True, use_tqdm=True, **keys)
    assert job.items == (parse_completion(**keys), parse_completion(**keys, prompt="Ho"))
    assert (job.stream, job.use_tqdm) == (True, True)
    assert not parse_list(prompts=["Hi"]).stream
