"""Lists of prompts as a job's input: what fails the job, and what fails one item."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import ListJob, RawJob, parse_input

TURN = {"role": "user", "content": "Hi"}
MOST = 10_000


def listed(payload: Any) -> ListJob:
    job = parse_input(payload)
    assert isinstance(job, ListJob)
    return job


def refusal(payload: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_input(payload)
    return caught.value


def raw_items(job: ListJob) -> list[RawJob]:
    items = [item for item in job.items if isinstance(item, RawJob)]
    assert len(items) == len(job.items)
    return items


def wrong_items(job: ListJob) -> dict[int, str | None]:
    """Return the index of every invalid item, and the parameter that its error names."""
    errors = enumerate(job.items)
    return {place: error.param for place, error in errors if isinstance(error, InvalidInput)}


@pytest.mark.parametrize(
    ("form", "single"),
    [
        ({"prompts": ["a", "b"]}, [{"prompt": "a"}, {"prompt": "b"}]),
        ({"prompts": ["a", [1, 2]]}, [{"prompt": "a"}, {"prompt": [1, 2]}]),
        (
            {"messages_list": [[TURN], [TURN, TURN]]},
            [{"messages": [TURN]}, {"messages": [TURN] * 2}],
        ),
    ],
    ids=["prompts", "token-ids", "messages"],
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
    assert list(listed({**form, **shared}).items) == alone


def test_keys_of_the_whole_answer_stay_with_the_job() -> None:
    job = listed({"prompts": ["a"], "stream": True, "use_tqdm": False})
    assert (job.stream, job.use_tqdm) == (True, False)
    assert [item.stream for item in raw_items(job)] == [False]


@pytest.mark.parametrize("rest", [{}, {"stream": None, "use_tqdm": None, "sampling_params": None}])
def test_a_list_alone_has_the_defaults(rest: dict[str, None]) -> None:
    job = listed({"prompts": ["a"], "messages_list": None, "prompt": None, **rest})
    assert (job.stream, job.use_tqdm) == (False, None)
    assert list(job.items) == [parse_input({"prompt": "a"})]


def test_an_item_may_have_sampling_params_of_its_own() -> None:
    params = [{"n": 2}, {"temperature": 1}, None, {}]
    items = raw_items(listed({"prompts": list("abcd"), "sampling_params": params}))
    assert [item.sampling_params.n for item in items] == [2, 1, 1, 1]
    assert [item.sampling_params.vllm for item in items] == [{}, {"temperature": 1}, {}, {}]


def test_parameters_outside_sampling_params_apply_to_all_items() -> None:
    params = [{"guided_whitespace_pattern": " "}, None]
    items = raw_items(
        listed({"prompts": ["a", "b"], "sampling_params": params, "guided_regex": "x"})
    )
    assert [item.sampling_params.vllm["structured_outputs"] for item in items] == [
        {"regex": "x", "whitespace_pattern": " "},
        {"regex": "x"},
    ]


# How many:


@pytest.mark.parametrize(
    ("key", "item"), [("prompts", "a"), ("messages_list", [TURN])], ids=["prompts", "messages"]
)
def test_a_list_has_up_to_ten_thousand_items(key: str, item: Any) -> None:
    assert len(listed({key: [item] * MOST}).items) == MOST


@pytest.mark.parametrize("key", ["prompts", "messages_list"])
@pytest.mark.parametrize(
    "wrong", [[], ["a"] * (MOST + 1), "", "abc", {}, {"0": "a"}, 7, True], ids=lambda _: ""
)
def test_a_list_of_a_wrong_type_or_too_long_is_refused(key: str, wrong: Any) -> None:
    error = refusal({key: wrong})
    assert error.param == key
    assert error.message in (
        f"{key}: a list of 1 to 10,000 items",
        f"{key}: 10,001 items, at most 10,000 (MAX_INPUT_ITEMS)",
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_of_sampling_params_is_as_long_as_that_of_prompts(count: int) -> None:
    error = refusal({"prompts": ["a", "b"], "sampling_params": [{}] * count})
    assert error.param == "sampling_params"
    assert error.message == f"sampling_params: {count} of them for 2 prompts"


# One shape at a time:

SHAPES: dict[str, Any] = {
    "prompt": "a",
    "messages": [TURN],
    "prompts": ["a"],
    "messages_list": [[TURN]],
}


@pytest.mark.parametrize(
    "keys",
    [
        ("prompt", "prompts"),
        ("prompt", "messages_list"),
        ("messages", "prompts"),
        ("messages", "messages_list"),
        ("prompts", "messages_list"),
        ("prompt", "messages", "prompts"),
        tuple(SHAPES),
    ],
    ids="+".join,
)
def test_one_of_the_shapes_is_sent_not_more(keys: tuple[str, ...]) -> None:
    error = refusal({key: SHAPES[key] for key in keys})
    assert error.param in keys
    assert error.message == f"{' and '.join(sorted(keys))}: one of them, not more"


# Wrong for all items:

every_form = pytest.mark.parametrize(
    "form", [{"prompts": ["a", "b"]}, {"messages_list": [[TURN], [TURN]]}], ids=["text", "turns"]
)


@every_form
@pytest.mark.parametrize(
    ("shared", "param"),
    [
        ({"sampling_params": {"n": 0}}, "n"),
        ({"sampling_params": {"best_of": "2"}}, "best_of"),
        ({"sampling_params": {"guided_json": {}, "guided_regex": "a"}}, "guided_json"),
        ({"sampling_params": {"logits_processors": []}}, "logits_processors"),
        ({"sampling_params": "n"}, "sampling_params"),
        ({"sampling_params": {"guided_regex": "a"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_json"),
        ({"guided_json": {}, "guided_regex": "a", "sampling_params": [{}, {}]}, "guided_json"),
        ({"model": 7}, "model"),
        ({"model": 7, "sampling_params": [{}, {}]}, "model"),
        ({"max_batch_size": -1}, "max_batch_size"),
        ({"use_tqdm": 1}, "use_tqdm"),
        ({"use_tqdm": "true"}, "use_tqdm"),
        ({"stream": "yes"}, "stream"),
        ({"format": "other"}, "format"),
        ({"zzz": 1}, "zzz"),
        ({"zzz": 1, "sampling_params": [{}, {}]}, "zzz"),
    ],
)
def test_a_mistake_in_a_shared_parameter_fails_the_job(
    form: dict[str, Any], shared: dict[str, Any], param: str
) -> None:
    assert refusal({**form, **shared}).param == param


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    assert refusal({"prompts": ["a"], "sampling_param": {}}).message == (
        "unknown key 'sampling_param': did you mean 'sampling_params'?"
    )


# Wrong for one item:


@pytest.mark.parametrize("wrong", [7, True, 1.5, {}, [], [-1], [True], ["a"], [1, "a"]])
def test_a_prompt_of_a_wrong_type_fails_in_its_place(wrong: Any) -> None:
    job = listed({"prompts": ["a", wrong, "b"]})
    assert wrong_items(job) == {1: "prompt"}
    assert [job.items[0], job.items[2]] == [parse_input({"prompt": text}) for text in "ab"]


@pytest.mark.parametrize("form", [{"prompts": ["a", None]}, {"messages_list": [[TURN], None]}])
def test_an_item_that_is_null_fails_in_its_place(form: dict[str, Any]) -> None:
    assert list(wrong_items(listed(form))) == [1]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ("Hi", "messages"),
        ([], "messages"),
        (TURN, "messages"),
        (["Hi"], "messages.0"),
        ([TURN, {"role": 7}], "messages.1.role"),
    ],
)
def test_a_conversation_of_a_wrong_type_fails_in_its_place(wrong: Any, param: str) -> None:
    assert wrong_items(listed({"messages_list": [wrong, [TURN]]})) == {0: param}


def test_token_ids_can_not_be_a_users_turn_where_a_text_can() -> None:
    job = listed({"prompts": ["a", [1, 2]], "apply_chat_template": True})
    assert wrong_items(job) == {1: "apply_chat_template"}


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_json"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ("n", "sampling_params"),
        ([], "sampling_params"),
    ],
)
def test_its_own_sampling_params_fail_an_item_in_its_place(params: Any, param: str) -> None:
    job = listed({"prompts": list("abc"), "sampling_params": [{}, None, params]})
    assert wrong_items(job) == {2: param}


@pytest.mark.parametrize("own", [{"guided_regex": "b"}, {"guided_choice": ["b"]}])
def test_a_shared_parameter_that_clashes_with_an_items_own_fails_that_item(
    own: dict[str, Any],
) -> None:
    payload = {"prompts": ["a", "b"], "sampling_params": [own, {}], "guided_regex": "a"}
    assert list(wrong_items(listed(payload))) == [0]


def test_up_to_a_hundred_wrong_items_are_a_job_even_if_all_are_wrong() -> None:
    assert wrong_items(listed({"prompts": [7] * 100})) == dict.fromkeys(range(100), "prompt")
    refused = refusal({"prompts": ["a", *[7] * 101]})
    assert "more than 100 items are wrong; item 101: prompt: " in refused.message


def test_a_refusal_in_a_list_does_not_quote_what_was_sent() -> None:
    (error,) = listed({"prompts": [["my secret prompt"]]}).items
    assert isinstance(error, InvalidInput)
    assert "secret" not in error.message


@every_form
def test_parsing_leaves_the_payload_alone(form: dict[str, Any]) -> None:
    payload = {**form, "sampling_params": [{}, None], "stream": True, "guided_regex": "a"}
    before = {
        key: value.copy() if isinstance(value, list) else value for key, value in payload.items()
    }
    parse_input(payload)
    assert payload == before


# What all items share is there once, however many they are:


@pytest.mark.parametrize(
    "form", [{"prompts": ["a", [1], "b"]}, {"messages_list": [[TURN]] * 3}], ids=["text", "turns"]
)
@pytest.mark.parametrize("params", [{"n": 2}, [{"n": 2}, {"n": 2}, None]], ids=["all", "each"])
def test_items_share_what_is_not_their_own(form: dict[str, Any], params: Any) -> None:
    shared = {"tools": [{"type": "function"}], "chat_template_kwargs": {"a": 1}}
    items = raw_items(listed({**form, **shared, "sampling_params": params}))
    for name in ("tools", "chat_template_kwargs"):
        assert len({id(getattr(item, name)) for item in items}) == 1
    if isinstance(params, dict):
        assert len({id(item.sampling_params) for item in items}) == 1


def test_what_each_items_parameters_would_repeat_has_a_bound() -> None:
    payload = {"prompts": ["a"] * 200, "sampling_params": [{}] * 200, "guided_regex": "a" * 5_000}
    error = refusal(payload)
    assert error.param == "guided_regex"
    assert "200 times" in error.message
    assert "at most 1,000,000" in error.message
    # Once for all, it is no more than it is.
    assert len(raw_items(listed({**payload, "sampling_params": {}}))) == 200
