"""Lists of prompts, and the form of Scale's LLM Engine, as a job's input."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import ListJob, RawJob, parse_input

TURN = {"role": "user", "content": "Hi"}


def listed(**keys: Any) -> ListJob:
    job = parse_input(keys)
    assert isinstance(job, ListJob)
    return job


def raw_items(**keys: Any) -> list[RawJob]:
    items = listed(**keys).items
    right = [item for item in items if isinstance(item, RawJob)]
    assert len(right) == len(items)
    return right


def wrong_items(**keys: Any) -> dict[int, str | None]:
    """Return the index of every invalid item, and the parameter that its error names."""
    errors = enumerate(listed(**keys).items)
    return {place: error.param for place, error in errors if isinstance(error, InvalidInput)}


@pytest.mark.parametrize(
    "shared",
    [
        {"model": "demo", "return_token_ids": True, "sampling_params": {"n": 2, "seed": 7}},
        {"guided_regex": "a", "return_token_log_probs": True, "sampling_params": {"seed": 7}},
    ],
)
def test_every_item_is_the_job_that_it_would_be_alone(shared: dict[str, Any]) -> None:
    prompts: list[Any] = ["a", [1, 2]]
    alone = [parse_input({"prompt": prompt, **shared}) for prompt in prompts]
    assert list(listed(prompts=prompts, **shared).items) == alone
    turns = [[TURN], [TURN] * 2]
    alone = [parse_input({"messages": messages, **shared}) for messages in turns]
    assert list(listed(messages_list=turns, **shared).items) == alone


def test_keys_of_the_whole_answer_stay_with_the_job() -> None:
    job = listed(prompts=["a"], stream=True, use_tqdm=False)
    assert (job.stream, job.use_tqdm) == (True, False)
    plain = listed(prompts=["a"], messages_list=None, prompt=None, use_tqdm=None)
    assert (plain.stream, plain.use_tqdm, plain.items) == (False, None, job.items)
    assert len(listed(messages_list=[[TURN]] * 10_000).items) == 10_000


def test_an_item_may_have_sampling_params_of_its_own_and_those_beside_them() -> None:
    params = [{"n": 2}, {"guided_whitespace_pattern": " "}, None]
    items = raw_items(prompts=list("abc"), sampling_params=params, guided_regex="x")
    assert [item.sampling_params.n for item in items] == [2, 1, 1]
    regex = {"regex": "x"}
    structured = [item.sampling_params.vllm["structured_outputs"] for item in items]
    assert structured == [regex, {**regex, "whitespace_pattern": " "}, regex]


# Wrong for one item:


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"prompts": ["a", 7, "b", [1, "a"]]}, {1: "prompt", 3: "prompt"}),
        ({"prompts": ["a", None]}, {1: "input"}),
        ({"messages_list": ["Hi", [TURN], []]}, {0: "messages", 2: "messages"}),
        ({"messages_list": [[TURN, {"role": 7}], ["Hi"]]}, {0: "messages.1.role", 1: "messages.0"}),
        ({"prompts": ["a", [1]], "apply_chat_template": True}, {1: "apply_chat_template"}),
        ({"prompts": [7] * 100}, dict.fromkeys(range(100), "prompt")),
    ],
)
def test_a_wrong_item_fails_in_its_place(keys: dict[str, Any], wrong: dict[int, str]) -> None:
    assert wrong_items(**keys) == wrong


def test_its_own_sampling_params_fail_an_item_in_its_place() -> None:
    # The last two clash with what all items share.
    params = [{}, {"n": 0}, None, "n", {"guided_regex": "b"}, {"guided_choice": ["b"]}]
    wrong = {1: "n", 3: "sampling_params", 4: "guided_regex", 5: "guided_choice"}
    prompts = list("abcdef")
    assert wrong_items(prompts=prompts, sampling_params=params, guided_regex="a") == wrong


# What all items share is there once, however many they are:


@pytest.mark.parametrize("params", [{"n": 2}, [{"n": 2}, {"n": 2}, None]], ids=["all", "each"])
def test_items_share_what_is_not_their_own(params: Any) -> None:
    shared = {"tools": [{"type": "function"}], "chat_template_kwargs": {"a": 1}}
    items = raw_items(prompts=["a", [1], "b"], **shared, sampling_params=params)
    common = {id(item.tools) for item in items} | {id(item.chat_template_kwargs) for item in items}
    assert len(common) == 2
    if isinstance(params, dict):
        assert len({id(item.sampling_params) for item in items}) == 1


# LLM Engine's form:

DEFAULTS = {"max_tokens": 20, "temperature": 0.2}
# Parameters that have vLLM's names, with values at the ends of their ranges.
AS_IN_VLLM: list[dict[str, Any]] = [
    {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 2.0, "top_k": -1, "top_p": 1},
    {"temperature": 1.0, "presence_penalty": 2.0, "frequency_penalty": 0, "top_p": 0.001},
    {"include_stop_str_in_output": False, "skip_special_tokens": True},
]


def completion(**keys: Any) -> RawJob:
    job = parse_input({"format": "llm_engine", "prompt": "Hi", **keys})
    assert isinstance(job, RawJob)
    return job


def batch(**keys: Any) -> ListJob:
    job = parse_input({"format": "llm_engine", **keys})
    assert isinstance(job, ListJob)
    return job


def test_a_prompt_alone_has_the_defaults_of_that_form() -> None:
    plain = parse_input({"prompt": "Hi", "format": "raw", "sampling_params": DEFAULTS})
    assert completion() == plain.model_copy(update={"format": "llm_engine"})


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
def test_every_parameter_becomes_vllms_own(sent: dict[str, Any], vllm: dict[str, Any]) -> None:
    assert completion(**sent).sampling_params.vllm == DEFAULTS | vllm


def test_null_and_keys_of_their_client_alone_change_nothing() -> None:
    nulls = dict.fromkeys(("max_new_tokens", "temperature", "stop_sequences", "top_k", "zzz"))
    assert completion(timeout="of any type", request_headers=7, **nulls) == completion()


def test_the_model_the_stream_and_its_chunks_reach_the_job() -> None:
    keys = {"model": "demo", "stream": True, "max_batch_size": 5, "max_batch_delay_ms": 0}
    assert completion(**keys) == completion().model_copy(update=keys)


def test_prompts_are_a_list_of_the_same_completions() -> None:
    keys = {"max_new_tokens": 5, "stop_sequences": ["a"], "return_token_log_probs": True}
    job = batch(prompts=["Hi", "Ho"], stream=True, use_tqdm=True, **keys)
    assert job.items == (completion(**keys), completion(**keys, prompt="Ho"))
    assert (job.stream, job.use_tqdm) == (True, True)
    assert not batch(prompts=["Hi"]).stream
