"""vLLM's outputs, taken apart into deltas."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine import Delta
from worker.engine.generation.deltas import UNFINISHED, deltas


def decode(ids: list[int]) -> str:
    """A tokenizer whose tokens are bytes: characters span several, as with byte-level BPE."""
    return bytes(ids).decode("utf-8", "replace")


def choice(text: str, ids: list[int] | None = None, **fields: Any) -> SimpleNamespace:
    given_fields: dict[str, Any] = {
        "index": 0,
        "text": text,
        "token_ids": list(text.encode()) if ids is None else ids,
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
    }
    return SimpleNamespace(**given_fields | fields)


def output(*choices: SimpleNamespace, prompt: list[int] | None = None) -> SimpleNamespace:
    return SimpleNamespace(outputs=list(choices), prompt_token_ids=prompt, prompt_logprobs=None)


def split(*choices: SimpleNamespace) -> list[Delta]:
    return list(deltas(output(*choices), decode))


def texts(parts: list[Delta]) -> list[str]:
    return [part.text for part in parts]


def test_a_single_token_is_a_single_delta() -> None:
    (part,) = deltas(output(choice("a"), prompt=[1, 2]), decode)
    assert part == Delta(index=0, text="a", tokens=1, prompt_tokens=2)


def test_merged_tokens_are_split_one_delta_a_token() -> None:
    parts = split(choice("abc"))
    assert (texts(parts), [part.tokens for part in parts]) == (["a", "b", "c"], [1, 1, 1])


def test_without_a_tokenizer_a_choice_is_one_delta() -> None:
    (part,) = deltas(output(choice("abc", finish_reason="stop")), None)
    assert (part.text, part.tokens, part.finish_reason) == ("abc", 3, "stop")


def test_a_character_of_several_tokens_comes_with_its_last() -> None:
    assert texts(split(choice("aé😀b"))) == ["a", "", "é", "", "", "", "😀", "b"]


def test_a_character_that_began_before_is_not_split() -> None:
    parts = split(choice("éb", ids=[0xA9, ord("b")]))
    assert ("".join(texts(parts)), len(parts)) == ("éb", 2)


def test_a_replacement_character_of_the_model_itself_is_kept() -> None:
    assert "".join(texts(split(choice(f"a{UNFINISHED}b{UNFINISHED}")))) == "a\ufffdb\ufffd"


def test_text_that_the_engine_holds_back_is_not_invented() -> None:
    # vLLM keeps the last characters until they can't be the beginning of a stop string.
    assert texts(split(choice("ab", ids=[97, 98, 99, 100]))) == ["a", "b", "", ""]


def test_text_that_was_held_back_comes_with_the_last_token() -> None:
    assert "".join(texts(split(choice("held ab", ids=[97, 98])))) == "held ab"


def test_a_tokenizer_that_takes_text_back_doubles_none() -> None:
    # Some drop a space before the punctuation that follows it.
    decoded = {1: "abcd", 2: "ab"}
    parts = deltas(output(choice("abcdef", ids=[1, 2, 3])), lambda ids: decoded[len(ids)])
    assert texts(list(parts)) == ["abcd", "", "ef"]


def test_an_output_without_tokens_still_has_its_text_and_end() -> None:
    (part,) = split(choice("rest", ids=[], finish_reason="length"))
    assert (part.text, part.tokens, part.finish_reason) == ("rest", 0, "length")


def test_only_the_last_token_has_the_finish_reason() -> None:
    parts = split(choice("abc", finish_reason="stop", stop_reason="c"))
    assert [(part.finish_reason, part.stop_reason) for part in parts] == [
        (None, None),
        (None, None),
        ("stop", "c"),
    ]


def test_choices_are_kept_apart() -> None:
    parts = split(choice("ab"), choice("c", index=1, finish_reason="length"))
    assert [(part.index, part.text, part.finish_reason) for part in parts] == [
        (0, "a", None),
        (0, "b", None),
        (1, "c", "length"),
    ]


def test_the_prompts_tokens_are_counted_in_every_delta() -> None:
    parts = list(deltas(output(choice("ab"), prompt=[7, 8, 9]), decode))
    assert [part.prompt_tokens for part in parts] == [3, 3]


def position(**candidates: tuple[int, int, float]) -> dict[int, SimpleNamespace]:
    """Return vLLM's candidates at one position, from token=(id, rank, logprob)."""
    return {
        id_: SimpleNamespace(decoded_token=token, rank=rank, logprob=logprob)
        for token, (id_, rank, logprob) in candidates.items()
    }


POSITIONS = [
    position(a=(97, 1, -0.1), x=(120, 2, -2.0)),
    position(b=(98, 2, -1.5), y=(121, 1, -0.5)),
]
LOGPROBS = [
    {
        "token": "a",
        "id": 97,
        "logprob": -0.1,
        "top": [
            {"token": "a", "id": 97, "logprob": -0.1},
            {"token": "x", "id": 120, "logprob": -2.0},
        ],
    },
    {
        "token": "b",
        "id": 98,
        "logprob": -1.5,
        "top": [
            {"token": "y", "id": 121, "logprob": -0.5},
            {"token": "b", "id": 98, "logprob": -1.5},
        ],
    },
]


def test_log_probabilities_stay_in_step_with_the_tokens() -> None:
    parts = split(choice("ab", logprobs=POSITIONS))
    assert [part.logprobs for part in parts] == [[LOGPROBS[0]], [LOGPROBS[1]]]


def test_a_whole_choice_has_all_its_log_probabilities() -> None:
    (part,) = deltas(output(choice("ab", logprobs=POSITIONS)), None)
    assert part.logprobs == LOGPROBS


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_token_that_is_excluded_has_a_log_probability_that_json_has(value: float) -> None:
    excluded = position(a=(97, 1, 0.0), x=(120, 2, value))
    (part,) = split(choice("a", logprobs=[excluded]))
    assert part.logprobs
    assert part.logprobs[0]["top"][1] == {"token": "x", "id": 120, "logprob": -9999.0}


@pytest.mark.parametrize("positions", [None, []])
def test_where_none_were_asked_for_there_are_no_log_probabilities(positions: Any) -> None:
    assert [part.logprobs for part in split(choice("ab", logprobs=positions))] == [None, None]


bytes_ = st.lists(st.sampled_from([*"a é😀".encode(), 0xEF, 0xBF, 0xBD, 0x80]), max_size=12)


@given(bytes_, st.one_of(st.none(), st.text(alphabet="aé😀\ufffd", max_size=8)))
@settings(deadline=None, database=None)
def test_no_text_and_no_token_is_lost_or_doubled(ids: list[int], other: str | None) -> None:
    text = decode(ids) if other is None else other
    parts = split(choice(text, ids=ids, finish_reason="stop"))
    assert "".join(texts(parts)) == text
    assert [part.tokens for part in parts] == ([1] * len(ids) or [0])
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["stop"]


@given(st.text(alphabet="aé€😀", max_size=10))
@settings(deadline=None, database=None)
def test_no_character_is_split_into_replacement_characters(text: str) -> None:
    assert UNFINISHED not in "".join(texts(split(choice(text))))
