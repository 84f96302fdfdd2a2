"""How much an input may hold: counted first, and refused by limit, field and size."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.answers import answered, refused
from support.engine.scripted import tokens

from worker.dialects import parse_input
from worker.errors import InputTooLarge, InvalidInput
from worker.job import Budget

SMALL = Budget(megabytes=0.001, values=50, depth=4, items=20)


def nested(depth: int, value: Any = "a") -> Any:
    for _ in range(depth):
        value = [value]
    return value


def refusal(payload: Any, budget: Budget = SMALL) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        budget.check(payload)
    return caught.value


def test_what_is_within_the_budget_is_accepted() -> None:
    payloads: list[Any] = [
        *({}, None, "a" * 900, "é" * 450, {"a" * 256: 1}, {"a": ["b"] * 20}, {"a": nested(3)}),
        *({"a": [[], {}, [], {}]}, {str(number): number for number in range(20)}),
        # Token ids are neither values nor items.
        *({"prompt": [1] * 100}, {"prompt": [[1] * 30] * 5}),
        {"seed": 2**64 - 1, "other": -(2**63)},
        # 50 values, with the input itself.
        {"a": ["b"] * 20, "c": ["d"] * 20, "e": ["f"] * 6},
    ]
    for payload in payloads:
        SMALL.check(payload)


ITEMS = "21 items, at most 20 (MAX_INPUT_ITEMS)"
BITS = "an integer has more than 64 bits"
VALUES = "with its 20 items the input has more than 50 values (MAX_INPUT_VALUES)"


@pytest.mark.parametrize(
    ("payload", "field", "message"),
    [
        ({"a": ["b"] * 21}, "a", ITEMS),
        ({"a": {"b": [{}] * 21}}, "a.b", ITEMS),
        ({"a": {str(key): 0 for key in range(21)}}, "a", ITEMS),
        # One that is no number makes it a list of anything; so does true.
        ({"a": [0] * 20 + ["b"]}, "a", ITEMS),
        ({"a": [True] * 21}, "a", ITEMS),
        ([["a"] * 21], "0", ITEMS),
        ({"a": [{"b": 1}] * 20, "c": [{"d": 1}] * 20}, "a", VALUES),
        ({"a": nested(4)}, "a.0.0.0", "more than 4 levels deep (MAX_INPUT_DEPTH)"),
        ({"a": {"b" * 257: 1}}, "a", "a key of 257 characters, at most 256"),
        ({"a": {"seed": 2**64}}, "a.seed", BITS),
        ({"a": {"seed": -(2**63) - 1}}, "a.seed", BITS),
        ({"a": [1, 2**64]}, "a", BITS),
        ({"a": ["b", 10**4299]}, "a.1", BITS),
    ],
)
def test_a_refusal_has_the_limit_and_the_size(payload: Any, field: str, message: str) -> None:
    error = refusal(payload)
    assert (error.status, error.param, error.message) == (400, field, f"{field}: {message}")


@pytest.mark.parametrize(
    "payload",
    [
        {"a": "b" * 1_001},
        {"a": "é" * 501},
        {"a": ["b" * 40] * 20, "c": ["d" * 40] * 20},
        {"a": {"b" * 200 + str(number): "" for number in range(6)}},
        {"prompt": [1] * 300},
    ],
)
def test_too_many_bytes_are_413(payload: Any) -> None:
    with pytest.raises(InputTooLarge, match=r"1,000 bytes \(MAX_INPUT_MB\)") as caught:
        SMALL.check(payload)
    assert caught.value.status == 413


def test_token_ids_of_all_lists_are_counted_together() -> None:
    Budget().check({"prompts": [[0] * 100_000] * 15})
    assert "more than 1,500,000" in refusal({"prompts": [[0] * 100_000] * 16}, Budget()).message


def test_the_default_leaves_room_for_large_use() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    turn = {"role": "user", "content": "a" * 600_000}
    for payload in (
        {"prompts": ["a" * 1_000] * 10_000},
        {"openai_input": {"messages": [turn] * 20, "tools": [tool] * 128}},
        {"openai_input": {"input": [[1] * 512] * 2_048}},
        {"prompt": [100_000] * 1_000_000},
    ):
        Budget().check(payload)


def test_an_input_of_any_depth_is_refused_without_recursion_shortly_and_quotes_no_value() -> None:
    deep: Any = {"k" * 256: "my secret"}
    for _ in range(100_000):
        deep = {"k" * 256: deep, "a": 0.5}
    message = refusal(deep, Budget()).message
    assert "64 levels" in message
    assert "secret" not in message
    assert len(message) < 1_000
    while deep:  # so deep that Python's own end of it would be recursive
        deep = deep["k" * 256] if isinstance(deep, dict) else None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@settings(max_examples=30)
def test_any_json_is_accepted_or_refused_and_nothing_else_is_raised(payload: Any) -> None:
    for budget in (SMALL, Budget()):
        with contextlib.suppress(InvalidInput, InputTooLarge):
            budget.check(payload)


def test_every_shape_is_counted_first() -> None:
    with pytest.raises(InvalidInput, match="64 levels"):
        parse_input({"none": "of the shapes", "but": nested(100)})


async def test_the_operator_sets_the_budget() -> None:
    job = {"prompt": "a" * 10_000}
    assert (await refused(job, MAX_INPUT_MB="0.009"))["code"] == 413
    assert "error" not in (await answered(job, *tokens("a"), MAX_INPUT_MB="0.011"))[-1]
