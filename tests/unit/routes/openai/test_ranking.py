"""``best_of``: which of vLLM's choices the caller gets, and what they have."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.job.sampling import Sampling
from worker.routes.openai.ranking import Ranking


def chat_choice(index: int, *logprobs: float) -> dict[str, Any]:
    content = [{"token": "x", "logprob": value} for value in logprobs]
    message = {"content": f"text {index}"}
    return {"index": index, "message": message, "logprobs": {"content": content}}


def completion_choice(index: int, *logprobs: float | None) -> dict[str, Any]:
    details = {"token_logprobs": [*logprobs], "tokens": ["x"] * len(logprobs)}
    return {"index": index, "text": f"text {index}", "logprobs": details}


def sampled(n: int, width: int, *, shows_logprobs: bool = True) -> Ranking:
    return Ranking(n, width, ranked=False, shows_logprobs=shows_logprobs)


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, int, list[list[list[float]]]]:
    """Draw n, the width, and for every prompt its choices' log probabilities."""
    width = draw(st.integers(1, 4))
    # Whole numbers, so that equal sums are equal.
    values = st.lists(st.integers(-9, 0).map(float), min_size=1, max_size=3)
    groups = st.lists(values, min_size=width, max_size=width)
    kept = draw(st.integers(1, width))
    return kept, width, draw(st.lists(groups, min_size=1, max_size=3))


@given(answers(), st.randoms(), st.sampled_from([chat_choice, completion_choice]))
@settings(deadline=None, database=None, max_examples=100)
def test_each_prompt_keeps_its_likeliest_choices_the_likeliest_first(
    asked: tuple[int, int, list[list[list[float]]]], random: Any, make: Any
) -> None:
    n, width, groups = asked
    likely = [values for group in groups for values in group]
    choices = [make(place, *values) | {"from": place} for place, values in enumerate(likely)]
    random.shuffle(choices)
    best = sampled(n, width).best({"choices": choices})["choices"]
    assert [choice["index"] for choice in best] == list(range(n * len(groups)))
    assert len({choice["from"] for choice in best}) == len(best)
    for place, group in enumerate(groups):
        kept = [choice["from"] for choice in best[place * n : (place + 1) * n]]
        assert {origin // width for origin in kept} == {place}
        assert [sum(likely[origin]) for origin in kept] == sorted(map(sum, group), reverse=True)[:n]


def test_of_equally_likely_choices_the_first_is_kept() -> None:
    choices = [completion_choice(index, -1.0, -1.0) for index in (2, 1, 0)]
    assert texts(sampled(2, 3).best({"choices": choices})) == ["text 0", "text 1"]


def test_choices_are_ordered_by_number_and_not_as_text() -> None:
    choices = [completion_choice(index, 0.0) for index in reversed(range(12))]
    assert texts(sampled(11, 12).best({"choices": choices}))[9:] == ["text 9", "text 10"]


def test_the_sum_counts_and_not_the_average() -> None:
    choices = [completion_choice(0, -1.0, -1.0), completion_choice(1, -1.5)]
    assert texts(sampled(1, 2).best({"choices": choices})) == ["text 1"]


def test_an_echoed_prompts_first_token_counts_for_nothing() -> None:
    choices = [completion_choice(0, None, -2.0), completion_choice(1, None, -1.0)]
    assert texts(sampled(1, 2).best({"choices": choices})) == ["text 1"]


def test_an_answer_of_no_token_is_the_likeliest() -> None:
    empty = chat_choice(1) | {"logprobs": {"content": None}}
    (kept,) = sampled(1, 2).best({"choices": [chat_choice(0, -0.5), empty]})["choices"]
    assert kept["message"] == {"content": "text 1"}


def test_beams_keep_the_order_that_they_come_in() -> None:
    choices = [{**completion_choice(index), "logprobs": None} for index in range(6)]
    ranking = Ranking(n=2, width=3, ranked=True, shows_logprobs=False)
    best = ranking.best({"choices": choices})
    assert texts(best) == ["text 0", "text 1", "text 3", "text 4"]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [chat_choice, completion_choice])
def test_log_probabilities_are_for_those_who_asked_for_them(make: Any) -> None:
    answer = {"choices": [make(0, -1.0), make(1, -0.5)]}
    (asked,) = sampled(1, 2).best(answer)["choices"]
    (unasked,) = sampled(1, 2, shows_logprobs=False).best(answer)["choices"]
    assert asked == make(1, -0.5) | {"index": 0}
    assert unasked == asked | {"logprobs": None}


def test_the_rest_of_an_answer_stays_as_it_is() -> None:
    answer = {"id": "x", "usage": {"total_tokens": 9}, "choices": [completion_choice(0, 0.0)]}
    before = copy.deepcopy(answer)
    assert sampled(1, 1).best(answer) == before
    assert answer == before


# The request to vLLM's server:


@pytest.mark.parametrize(
    ("body", "logprobs", "shows_logprobs"),
    [
        ({"messages": []}, True, False),
        ({"messages": [], "logprobs": False}, True, False),
        ({"messages": [], "logprobs": True}, True, True),
        ({"prompt": ""}, 0, False),
        ({"prompt": "", "logprobs": None}, 0, False),
        ({"prompt": "", "logprobs": 0}, 0, True),
        ({"prompt": "", "logprobs": 2}, 2, True),
    ],
    ids=repr,
)
def test_all_choices_are_asked_for_and_what_they_are_ranked_by(
    body: dict[str, Any], logprobs: Any, shows_logprobs: bool
) -> None:
    ranking = Ranking.begin(body, Sampling(n=2, best_of=5))
    assert ranking == Ranking(n=2, width=5, ranked=False, shows_logprobs=shows_logprobs)
    assert body["n"] == 5
    assert (body["logprobs"], type(body["logprobs"])) == (logprobs, type(logprobs))


@pytest.mark.parametrize(("best_of", "width"), [(None, 2), (4, 4)])
def test_beams_need_no_log_probabilities(best_of: int | None, width: int) -> None:
    body: dict[str, Any] = {"prompt": ""}
    ranking = Ranking.begin(body, Sampling(n=2, best_of=best_of, use_beam_search=True))
    assert (ranking, body["n"]) == (Ranking(2, width, ranked=True, shows_logprobs=False), width)
    assert "logprobs" not in body
