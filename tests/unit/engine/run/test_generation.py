"""Splitting of vLLM's outputs into deltas."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine import Delta
from worker.engine.run.generation import INCOMPLETE_CHARACTER, split_into_deltas


def decode(ids: list[int]) -> str:
    """Decode tokens that are bytes; a character may span several, as with byte-level BPE."""
    return bytes(ids).decode("utf-8", "replace")


def choice(text: str, ids: list[int] | None = None, **fields: Any) -> SimpleNamespace:
    defaults: dict[str, Any] = {
        "index": 0,
        "text": text,
        "token_ids": list(text.encode()) if ids is None else ids,
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
    }
    return SimpleNamespace(**defaults | fields)


def output(*choices: SimpleNamespace, prompt: list[int] | None = None) -> SimpleNamespace:
    return SimpleNamespace(outputs=list(choices), prompt_token_ids=prompt, prompt_logprobs=None)


def split_choices(*choices: SimpleNamespace) -> list[Delta]:
    return list(split_into_deltas(output(*choices), decode))


def texts(*choices: SimpleNamespace) -> list[str]:
    return [part.text for part in split_choices(*choices)]


@pytest.mark.parametrize(
    ("text", "ids", "expected"),
    [
        pytest.param("abc", None, ["a", "b", "c"], id="one delta per token"),
        pytest.param(
            "aé😀b", None, ["a", "", "é", "", "", "", "😀", "b"], id="characters of several tokens"
        ),
        pytest.param("éb", [0xA9, 98], ["", "éb"], id="a character that started earlier"),
        pytest.param(
            "a\ufffdb",
            None,
            ["a", "", "", "", "\ufffdb"],
            id="a replacement character of the model",
        ),
        # vLLM withholds the last characters while they may be the beginning of a stop string.
        pytest.param("ab", [97, 98, 99, 100], ["a", "b", "", ""], id="withheld text"),
        pytest.param("held ab", [97, 98], ["h", "eld ab"], id="previously withheld text"),
        pytest.param("rest", [], ["rest"], id="no tokens"),
    ],
)
def test_a_text_is_split_into_one_delta_per_token(
    text: str, ids: list[int] | None, expected: list[str]
) -> None:
    parts = split_choices(choice(text, ids, finish_reason="length"))
    assert [part.text for part in parts] == expected
    count = len(text.encode()) if ids is None else len(ids)
    assert [part.tokens for part in parts] == ([1] * count or [0])
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]


def test_no_text_is_repeated_if_the_tokenizer_removes_text() -> None:
    # Some tokenizers drop a space before the punctuation that follows it.
    decoded = {1: "abcd", 2: "ab"}
    parts = split_into_deltas(
        output(choice("abcdef", ids=[1, 2, 3])), lambda ids: decoded[len(ids)]
    )
    assert [part.text for part in parts] == ["abcd", "", "ef"]


def test_choices_are_separate_and_the_last_token_of_each_has_the_finish_reason() -> None:
    second = choice("cd", index=1, finish_reason="stop", stop_reason="d")
    parts = split_into_deltas(output(choice("ab"), second, prompt=[7, 8, 9]), decode)
    assert [
        (part.index, part.text, part.finish_reason, part.stop_reason, part.prompt_tokens)
        for part in parts
    ] == [
        (0, "a", None, None, 3),
        (0, "b", None, None, 3),
        (1, "c", None, None, 3),
        (1, "d", "stop", "d", 3),
    ]


def position(**candidates: tuple[int, int, float]) -> dict[int, SimpleNamespace]:
    """Return vLLM's candidates at one position, from token=(id, rank, logprob)."""
    return {
        id_: SimpleNamespace(decoded_token=token, rank=rank, logprob=logprob)
        for token, (id_, rank, logprob) in candidates.items()
    }


def test_every_token_has_its_log_probabilities_with_the_likeliest_first() -> None:
    def token(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "id": ord(token), "logprob": logprob}

    a, x, b, y = token("a", -0.1), token("x", -2.0), token("b", -1.5), token("y", -0.5)
    expected = [{**a, "top": [a, x]}, {**b, "top": [y, b]}]
    positions = [
        position(a=(97, 1, -0.1), x=(120, 2, -2.0)),
        position(b=(98, 2, -1.5), y=(121, 1, -0.5)),
    ]
    ab = choice("ab", logprobs=positions, finish_reason="stop")
    assert [part.logprobs for part in split_choices(ab)] == [[one] for one in expected]
    # Without a tokenizer a choice is one delta.
    (whole,) = split_into_deltas(output(ab), None)
    assert (whole.text, whole.tokens, whole.finish_reason) == ("ab", 2, "stop")
    assert whole.logprobs == expected


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_an_excluded_token_has_a_finite_log_probability(value: float) -> None:
    excluded = position(a=(97, 1, 0.0), x=(120, 2, value))
    (part,) = split_choices(choice("a", logprobs=[excluded]))
    assert part.logprobs
    assert part.logprobs[0]["top"][1] == {"token": "x", "id": 120, "logprob": -9999.0}


@pytest.mark.parametrize("positions", [None, []])
def test_there_are_no_log_probabilities_unless_requested(positions: Any) -> None:
    assert [part.logprobs for part in split_choices(choice("ab", logprobs=positions))] == [
        None,
        None,
    ]


bytes_ = st.lists(st.sampled_from([*"a é😀".encode(), 0xEF, 0xBF, 0xBD, 0x80]), max_size=12)


@given(bytes_, st.one_of(st.none(), st.text(alphabet="aé😀\ufffd", max_size=8)))
def test_no_text_and_no_token_is_lost_or_repeated(ids: list[int], other: str | None) -> None:
    text = decode(ids) if other is None else other
    parts = split_choices(choice(text, ids=ids, finish_reason="stop"))
    assert "".join(part.text for part in parts) == text
    assert [part.tokens for part in parts] == ([1] * len(ids) or [0])
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["stop"]


@given(st.text(alphabet="aé€😀", max_size=10))
def test_no_character_is_split_into_replacement_characters(text: str) -> None:
    assert INCOMPLETE_CHARACTER not in "".join(texts(choice(text)))
