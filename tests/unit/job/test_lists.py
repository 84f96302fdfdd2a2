"""Lists of prompts as a job's input: what all items share, and what is wrong with one of them."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import ListJob, RawJob, parse_input

TURN = {"role": "user", "content": "Hi"}
NO_PROMPTS: list[Any] = [7, True, 1.5, {}, [], [-1], [True], ["a"], [1, "a"]]


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
    ("form", "single"),
    [
        ({"prompts": ["a", [1, 2]]}, [{"prompt": "a"}, {"prompt": [1, 2]}]),
        ({"messages_list": [[TURN], [TURN] * 2]}, [{"messages": [TURN]}, {"messages": [TURN] * 2}]),
    ],
    ids=["prompts", "messages"],
)
@pytest.mark.parametrize(
    "shared",
    [
        {},
        {"sampling_params": {"n": 2, "seed": 7}},
        {"model": "demo", "return_token_ids": True},
        {"guided_regex": "a", "return_token_log_probs": True, "sampling_params": {"seed": 7}},
    ],
)
def test_every_item_is_the_job_that_it_would_be_alone(
    form: dict[str, Any], single: list[dict[str, Any]], shared: dict[str, Any]
) -> None:
    alone = [parse_input({**item, **shared}) for item in single]
    assert list(listed(**form, **shared).items) == alone


def test_keys_of_the_whole_answer_stay_with_the_job() -> None:
    job = listed(prompts=["a"], stream=True, use_tqdm=False)
    assert (job.stream, job.use_tqdm) == (True, False)
    assert job.items == (parse_input({"prompt": "a"}),)
    plain = listed(prompts=["a"], messages_list=None, prompt=None, use_tqdm=None)
    assert (plain.stream, plain.use_tqdm, plain.items) == (False, None, job.items)


def test_an_item_may_have_sampling_params_of_its_own() -> None:
    params = [{"n": 2}, {"temperature": 1}, None, {}]
    items = raw_items(prompts=list("abcd"), sampling_params=params)
    assert [item.sampling_params.n for item in items] == [2, 1, 1, 1]
    assert [item.sampling_params.vllm for item in items] == [{}, {"temperature": 1}, {}, {}]


def test_parameters_outside_sampling_params_apply_to_all_items() -> None:
    params = [{"guided_whitespace_pattern": " "}, None]
    items = raw_items(prompts=["a", "b"], sampling_params=params, guided_regex="x")
    assert [item.sampling_params.vllm["structured_outputs"] for item in items] == [
        {"regex": "x", "whitespace_pattern": " "},
        {"regex": "x"},
    ]


def test_a_list_has_up_to_ten_thousand_items() -> None:
    assert len(listed(prompts=["a"] * 10_000).items) == 10_000
    assert len(listed(messages_list=[[TURN]] * 10_000).items) == 10_000


# Wrong for one item:


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        *(({"prompts": ["a", prompt, "b"]}, {1: "prompt"}) for prompt in NO_PROMPTS),
        ({"prompts": ["a", None]}, {1: "input"}),
        ({"messages_list": [[TURN], None]}, {1: "input"}),
        ({"messages_list": ["Hi", [TURN]]}, {0: "messages"}),
        ({"messages_list": [[], [TURN]]}, {0: "messages"}),
        ({"messages_list": [TURN, ["Hi"]]}, {0: "messages", 1: "messages.0"}),
        ({"messages_list": [[TURN, {"role": 7}]]}, {0: "messages.1.role"}),
        ({"prompts": ["a", [1]], "apply_chat_template": True}, {1: "apply_chat_template"}),
        ({"prompts": [7] * 100}, dict.fromkeys(range(100), "prompt")),
    ],
)
def test_a_wrong_item_fails_in_its_place(keys: dict[str, Any], wrong: dict[int, str]) -> None:
    assert wrong_items(**keys) == wrong


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"guided_json": {}, "guided_choice": ["a"]}, "guided_choice"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ("n", "sampling_params"),
        ([], "sampling_params"),
        # They clash with what all items share.
        ({"guided_regex": "b"}, "guided_regex"),
        ({"guided_choice": ["b"]}, "guided_choice"),
    ],
)
def test_its_own_sampling_params_fail_an_item_in_its_place(params: Any, param: str) -> None:
    keys = {"prompts": list("abc"), "sampling_params": [{}, None, params], "guided_regex": "a"}
    assert wrong_items(**keys) == {2: param}


def test_a_refusal_of_an_item_does_not_quote_what_was_sent() -> None:
    (error,) = listed(prompts=[["my secret prompt"]]).items
    assert isinstance(error, InvalidInput)
    assert "secret" not in error.message


# What all items share is there once, however many they are:


@pytest.mark.parametrize("form", [{"prompts": ["a", [1], "b"]}, {"messages_list": [[TURN]] * 3}])
@pytest.mark.parametrize("params", [{"n": 2}, [{"n": 2}, {"n": 2}, None]], ids=["all", "each"])
def test_items_share_what_is_not_their_own(form: dict[str, Any], params: Any) -> None:
    shared = {"tools": [{"type": "function"}], "chat_template_kwargs": {"a": 1}}
    items = raw_items(**form, **shared, sampling_params=params)
    common = {id(item.tools) for item in items} | {id(item.chat_template_kwargs) for item in items}
    assert len(common) == 2
    if isinstance(params, dict):
        assert len({id(item.sampling_params) for item in items}) == 1
