"""Raw jobs at vLLM's limits: they are answered or refused, and none harms another."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Ask = Callable[..., Awaitable[list[Any]]]

PART = {"role": "user", "content": [{"foo": 1}]}


def error_of(chunk: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(chunk["error"])["error"]
    return error


@pytest.mark.parametrize("stream", [False, True])
async def test_an_excluded_token_has_a_log_probability_that_json_can_hold(
    stream: bool, ask: Ask
) -> None:
    params = {"guided_choice": ["yes", "no"], "logprobs": 3}
    chunks = await ask(prompt="Hello", sampling_params=params, stream=stream)
    text = json.dumps(chunks, allow_nan=False)
    assert "-9999.0" in text


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"trace_decode_token_ids": []}, None),
        ({"seed": 2**64 - 1, "n": 2}, "seed"),
        ({"stream_interval": 257}, "stream_interval"),
        ({"guided_whitespace_pattern": "a"}, "structured_outputs"),
    ],
)
async def test_a_mistake_that_vllm_notices_late_is_still_the_callers(
    params: dict[str, Any], param: str | None, ask: Ask
) -> None:
    (failed,) = await ask(prompt="Hello", sampling_params=params, stream=True)
    error = error_of(failed)
    assert (error["code"], error["param"]) == (400, param)


async def test_an_unknown_content_part_is_refused_with_what_it_lacks(ask: Ask) -> None:
    (failed,) = await ask(messages=[PART])
    error = error_of(failed)
    assert error["code"] == 400
    assert "type: Field required" in error["message"]


async def test_log_probabilities_of_chosen_tokens_can_be_ranked(ask: Ask) -> None:
    params = {"best_of": 3, "logprob_token_ids": [5, 6], "max_tokens": 4, "ignore_eos": True}
    (whole,) = await ask(prompt="Hello", sampling_params=params)
    assert len(whole["choices"][0]["logprobs"]) == 4


async def test_a_beam_ends_where_sampling_would(ask: Ask) -> None:
    # The demo model has two tokens that end a text, and vLLM's search knows one of them.
    ends = {1, 3}
    params = {"use_beam_search": True, "n": 3, "max_tokens": 80}
    (whole,) = await ask(prompt="Hello", sampling_params=params, return_token_ids=True)
    for choice in whole["choices"]:
        assert not ends & set(choice["token_ids"][:-1])
        assert choice["finish_reason"] == ("stop" if len(choice["token_ids"]) < 80 else "length")
    assert any(choice["stop_reason"] == 1 for choice in whole["choices"])


@pytest.mark.parametrize(
    ("keys", "status", "message"),
    [
        ({"sampling_params": {"temperature": 5}}, 400, "temperature"),
        ({"sampling_params": {"max_tokn": 3}}, 400, "max_tokens"),
        ({"model": "nope"}, 404, "nope"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_mistake_in_a_shared_parameter_fails_the_job(
    keys: dict[str, Any], status: int, message: str, stream: bool, ask: Ask
) -> None:
    (failed,) = await ask(prompts=["a", "b"], **keys, stream=stream)
    error = error_of(failed)
    assert error["code"] == status
    assert message in error["message"]


async def test_an_item_that_vllm_fails_at_fails_alone(ask: Ask) -> None:
    params = [{"max_tokens": 2}, {"trace_decode_token_ids": []}, {"max_tokens": 3}]
    (whole,) = await ask(prompts=["a", "b", "c"], sampling_params=params)
    assert [sorted(result) for result in whole["outputs"]] == [
        ["choices", "request_id", "usage"],
        ["error"],
        ["choices", "request_id", "usage"],
    ]


async def test_a_beam_ends_with_the_context(ask: Ask) -> None:
    params = {"use_beam_search": True, "n": 2, "max_tokens": 50, "ignore_eos": True}
    (whole,) = await ask(prompt=[5] * 1018, sampling_params=params, return_token_ids=True)
    # Of 1,024 tokens.
    assert [len(choice["token_ids"]) for choice in whole["choices"]] == [6, 6]


async def test_special_tokens_that_are_shown_stand_at_their_places_in_a_stream(ask: Ask) -> None:
    payload: dict[str, Any] = {
        "prompt": "Count to ten.",
        "apply_chat_template": True,
        "sampling_params": {
            **{"temperature": 0, "max_tokens": 60, "ignore_eos": True},
            "skip_special_tokens": False,
        },
    }
    (whole,) = await ask(**payload)
    # Several tokens at once, so that the worker has to split the text.
    payload["sampling_params"]["stream_interval"] = 20
    chunks = await ask(**payload, stream=True)
    texts = [text for chunk in chunks for text in chunk["choices"][0]["tokens"]]
    assert "".join(texts) == whole["choices"][0]["tokens"][0]
    assert "<|im_end|>" in texts
