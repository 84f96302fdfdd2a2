"""Lists of prompts as a job's input."""

from typing import Any

import pytest

from worker.dialects import parse_input
from worker.errors import InvalidInput
from worker.job import PromptListJob, RawJob

TURN = {"role": "user", "content": "Hi"}


def parse_list(**keys: Any) -> PromptListJob:
    job = parse_input(keys)
    assert isinstance(job, PromptListJob)
    return job


def raw_items(**keys: Any) -> list[RawJob]:
    items = parse_list(**keys).items
    right = [item for item in items if isinstance(item, RawJob)]
    assert len(right) == len(items)
    return right


def wrong_items(**keys: Any) -> dict[int, str | None]:
    """Return the parameter that the error of each invalid item names, by the item's index."""
    errors = enumerate(parse_list(**keys).items)
    return {place: error.param for place, error in errors if isinstance(error, InvalidInput)}


@pytest.mark.parametrize(
    "shared",
    [
        {"model": "demo", "return_token_ids": True, "sampling_params": {"n": 2, "seed": 7}},
        {"guided_regex": "a", "temperature": 0.7, "n": 2, "sampling_params": {"seed": 7}},
    ],
)
def test_every_item_equals_the_job_of_its_prompt_alone(shared: dict[str, Any]) -> None:
    prompts: list[Any] = ["a", [1, 2]]
    single_jobs = [parse_input({"prompt": prompt, **shared}) for prompt in prompts]
    assert list(parse_list(prompts=prompts, **shared).items) == single_jobs
    conversations = [[TURN], [TURN] * 2]
    single_jobs = [parse_input({"messages": messages, **shared}) for messages in conversations]
    assert list(parse_list(messages_list=conversations, **shared).items) == single_jobs


def test_keys_of_the_whole_response_belong_to_the_job() -> None:
    job = parse_list(prompts=["a"], stream=True, use_tqdm=False)
    assert (job.stream, job.use_tqdm) == (True, False)
    default_job = parse_list(prompts=["a"], messages_list=None, prompt=None, use_tqdm=None)
    assert (default_job.stream, default_job.use_tqdm, default_job.items) == (False, None, job.items)
    assert len(parse_list(messages_list=[[TURN]] * 10_000).items) == 10_000


def test_an_item_may_have_its_own_sampling_params_and_the_shared_ones() -> None:
    params = [{"n": 2}, {"guided_whitespace_pattern": " "}, None]
    items = raw_items(prompts=list("abc"), sampling_params=params, guided_regex="x", best_of=3)
    assert [item.sampling_params.n for item in items] == [2, 1, 1]
    assert [item.sampling_params.best_of for item in items] == [3, 3, 3]
    regex = {"regex": "x"}
    structured = [item.sampling_params.vllm_params["structured_outputs"] for item in items]
    assert structured == [regex, {**regex, "whitespace_pattern": " "}, regex]


# Invalid items:


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
def test_an_invalid_item_has_an_error_in_its_place(
    keys: dict[str, Any], wrong: dict[int, str]
) -> None:
    assert wrong_items(**keys) == wrong


def test_invalid_sampling_params_of_an_item_are_an_error_in_its_place() -> None:
    # The last three conflict with the shared parameters.
    params = [{}, {"n": 0}, None, "n", {"guided_regex": "b"}, {"guided_choice": ["b"]}, {"seed": 1}]
    wrong = {1: "n", 3: "sampling_params", 4: "guided_regex", 5: "guided_choice", 6: "seed"}
    shared = {"guided_regex": "a", "seed": 1}
    assert wrong_items(prompts=list("abcdefg"), sampling_params=params, **shared) == wrong


def test_numbers_next_to_the_sampling_params_of_the_items_are_not_large() -> None:
    params: list[dict[str, Any]] = [{}] * 10_000
    numbers = {"temperature": 0.123456789, "max_tokens": 40, "seed": 2**60, "top_p": 0.9}
    numbers |= {"top_k": 50, "presence_penalty": 0.1, "frequency_penalty": 0.1, "min_p": 0.1}
    items = raw_items(prompts=["a"] * 10_000, sampling_params=params, **numbers)
    assert {item.sampling_params.vllm_params["seed"] for item in items} == {2**60}


# Shared values:


@pytest.mark.parametrize("params", [{"n": 2}, [{"n": 2}, {"n": 2}, None]], ids=["all", "each"])
def test_items_share_the_objects_of_common_keys(params: Any) -> None:
    shared = {"tools": [{"type": "function"}], "chat_template_kwargs": {"a": 1}}
    items = raw_items(prompts=["a", [1], "b"], **shared, sampling_params=params)
    shared_ids = {id(item.tools) for item in items} | {
        id(item.chat_template_kwargs) for item in items
    }
    assert len(shared_ids) == 2
    if isinstance(params, dict):
        assert len({id(item.sampling_params) for item in items}) == 1
