"""Lists of prompts as a job's input."""

from typing import Any

import pytest

from worker.dialects import parse_input
from worker.errors import InvalidInput
from worker.job import ListJob, RawJob

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
