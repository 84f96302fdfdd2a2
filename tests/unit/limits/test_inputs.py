"""Limits on the size of an input, and keys that callers may not set on every worker."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.answers import job_error, run_job
from support.engine.scripted import CHAT, tokens

from worker.dialects import parse_input
from worker.errors import InputTooLarge, InvalidInput
from worker.limits import inputs
from worker.limits.inputs import check_size

# Megabytes of a small input.
SMALL_MB = 0.001


@pytest.fixture
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_VALUES", 50)
    monkeypatch.setattr(inputs, "MAX_DEPTH", 4)


def nest(depth: int, value: Any = "a") -> Any:
    for _ in range(depth):
        value = [value]
    return value


def refusal(payload: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        check_size(payload)
    return caught.value


@pytest.mark.usefixtures("_small_limits")
def test_an_input_within_the_limits_is_accepted() -> None:
    payloads: list[Any] = [
        *({}, None, "a" * 900, "é" * 450, {"a" * 900: 1}, {"a": ["b"] * 48}, {"a": nest(3)}),
        *({"a": [[], {}, [], {}]}, {str(number): number for number in range(48)}),
        # Token ids don't count as values.
        *({"prompt": [1] * 100}, {"prompt": [[1] * 30] * 5}),
        # Only numbers that reach the engine need to fit its messages.
        {"wei": 10**30, "others": ["a", -(10**30)]},
        # 50 values, including the input itself.
        {"a": ["b"] * 20, "c": ["d"] * 20, "e": ["f"] * 6},
    ]
    for payload in payloads:
        check_size(payload, SMALL_MB)


VALUES = "items the input has more than 50 values"


@pytest.mark.usefixtures("_small_limits")
@pytest.mark.parametrize(
    ("payload", "field", "message"),
    [
        ({"a": ["b"] * 50}, "a", f"with its 50 {VALUES}"),
        ({"a": {"b": [{}] * 50}}, "a.b", f"with its 50 {VALUES}"),
        # true is no number.
        ({"a": [True] * 50}, "a", f"with its 50 {VALUES}"),
        ([["a"] * 50], "0", f"with its 50 {VALUES}"),
        ({"a": [{"b": 1}] * 20, "c": [{"d": 1}] * 20}, "a", f"with its 20 {VALUES}"),
        ({"a": nest(4)}, "a.0.0.0", "more than 4 levels deep"),
    ],
)
def test_a_refusal_names_the_field_the_limit_and_the_size(
    payload: Any, field: str, message: str
) -> None:
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
        check_size(payload, SMALL_MB)
    assert caught.value.status == 413


def test_token_ids_of_all_lists_are_counted_together() -> None:
    check_size({"prompts": [[0] * 100_000] * 15})
    assert "more than 1,500,000" in refusal({"prompts": [[0] * 100_000] * 16}).message


def test_the_default_limits_accept_large_inputs() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    turn = {"role": "user", "content": "a" * 600_000}
    for payload in (
        {"prompts": ["a" * 1_000] * 10_000},
        {"openai_input": {"messages": [turn] * 20, "tools": [tool] * 300}},
        {"openai_input": {"input": [[1] * 512] * 2_048}},
        {"openai_input": {"input": ["a"] * 50_000}},
        {"prompt": [100_000] * 1_000_000},
    ):
        check_size(payload)


def test_a_deep_input_is_refused_without_recursion_in_a_short_message_without_values() -> None:
    deep: Any = {"k" * 256: "my secret"}
    for _ in range(100_000):
        deep = {"k" * 256: deep, "a": 0.5}
    message = refusal(deep).message
    assert "200 levels" in message
    assert "secret" not in message
    assert len(message) < 1_000
    while deep:  # so deep that deallocation by Python would be recursive
        deep = deep["k" * 256] if isinstance(deep, dict) else None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@settings(max_examples=30)
def test_any_json_is_accepted_or_refused_without_other_exceptions(payload: Any) -> None:
    for megabytes in (SMALL_MB, 20):
        with contextlib.suppress(InvalidInput, InputTooLarge):
            check_size(payload, megabytes)


def test_the_limits_are_checked_before_the_shape() -> None:
    with pytest.raises(InvalidInput, match="200 levels"):
        parse_input({"none": "of the shapes", "but": nest(250)})


async def test_the_operator_sets_the_limits() -> None:
    job = {"prompt": "a" * 10_000}
    assert (await job_error(job, MAX_INPUT_MB="0.009"))["code"] == 413
    assert "error" not in (await run_job(job, *tokens("a"), MAX_INPUT_MB="0.011"))[-1]


# Keys that are the operator's:

TURN = {"role": "user", "content": "Hi"}


def body(**fields: Any) -> dict[str, Any]:
    return {"openai_route": CHAT, "openai_input": {"messages": [TURN], **fields}}


@pytest.mark.parametrize(
    "key", ["tokenizer", "model_config", "tokenize", "max_length", "strftime_now"]
)
async def test_names_of_vllms_own_template_values_are_refused_on_both_paths(key: str) -> None:
    fields = {"chat_template_kwargs": {"custom-1": 1, key: 1}}
    for job in ({"messages": [TURN], **fields}, body(**fields)):
        error = await job_error(job)
        assert (error["code"], error["param"]) == (400, f"chat_template_kwargs.{key}")
        assert error["message"].endswith("not allowed in a request: vLLM sets it itself")


async def test_arguments_for_plugins_need_the_operators_permission() -> None:
    job = body(vllm_xargs={"its": "x", "mine": 1})
    for allowed, wrong in (("", "its"), ("its", "mine")):
        error = await job_error(job, ALLOWED_XARGS=allowed)
        assert (error["code"], error["param"]) == (400, f"vllm_xargs.{wrong}")
    assert "error" not in (await run_job(job, *tokens("a"), ALLOWED_XARGS="mine,its"))[-1]
