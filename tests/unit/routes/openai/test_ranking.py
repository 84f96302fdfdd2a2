"""``best_of``: which of vLLM's choices the caller gets, and what they have."""

from typing import Any

import pytest
from hypothesis import given
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


def best(n: int, width: int, *choices: dict[str, Any], **how: bool) -> list[dict[str, Any]]:
    ranking = Ranking(n, width, **{"ranked": False, "shows_logprobs": True, **how})
    kept: list[dict[str, Any]] = ranking.best({"choices": [*choices]})["choices"]
    return kept


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, int, list[list[list[float]]]]:
    """Draw n, the width, and for every prompt its choices' log probabilities."""
    width = draw(st.integers(1, 4))
    # Whole numbers, so that equal sums are equal.
    values = st.lists(st.integers(-9, 0).map(float), min_size=1, max_size=3)
    groups = st.lists(values, min_size=width, max_size=width)
    return draw(st.integers(1, width)), width, draw(st.lists(groups, min_size=1, max_size=3))


@given(answers(), st.randoms(), st.sampled_from([chat_choice, completion_choice]))
def test_each_prompt_keeps_its_likeliest_choices_the_likeliest_first(
    asked: tuple[int, int, list[list[list[float]]]], random: Any, make: Any
) -> None:
    n, width, groups = asked
    likely = [values for group in groups for values in group]
    choices = [make(place, *values) | {"from": place} for place, values in enumerate(likely)]
    random.shuffle(choices)
    kept = best(n, width, *choices)
    assert [choice["index"] for choice in kept] == list(range(n * len(groups)))
    assert len({choice["from"] for choice in kept}) == len(kept)
    for place, group in enumerate(groups):
        origins = [choice["from"] for choice in kept[place * n : (place + 1) * n]]
        assert {origin // width for origin in origins} == {place}
        sums = sorted(map(sum, group), reverse=True)
        assert [sum(likely[origin]) for origin in origins] == sums[:n]


@pytest.mark.parametrize(
    ("n", "choices", "kept"),
    [
        (2, [completion_choice(index, -1.0, -1.0) for index in (2, 1, 0)], [0, 1]),
        (1, [completion_choice(0, None, -2.0), completion_choice(1, None, -1.0)], [1]),
        (1, [completion_choice(0, -0.5), completion_choice(1)], [1]),
    ],
    ids=["of equals the first", "an echoed prompt counts for nothing", "no token is the likeliest"],
)
def test_the_likeliest_remain(n: int, choices: list[dict[str, Any]], kept: list[int]) -> None:
    found = best(n, len(choices), *choices)
    assert [choice["text"] for choice in found] == [f"text {index}" for index in kept]


def test_beams_keep_the_order_that_they_come_in() -> None:
    choices = [{**completion_choice(index), "logprobs": None} for index in range(6)]
    kept = best(2, 3, *choices, ranked=True, shows_logprobs=False)
    texts = [(choice["index"], choice["text"]) for choice in kept]
    assert texts == [(0, "text 0"), (1, "text 1"), (2, "text 3"), (3, "text 4")]


@pytest.mark.parametrize("make", [chat_choice, completion_choice])
def test_log_probabilities_are_for_those_who_asked_for_them(make: Any) -> None:
    choices = make(0, -1.0), make(1, -0.5)
    assert best(1, 2, *choices) == [choices[1] | {"index": 0}]
    assert best(1, 2, *choices, shows_logprobs=False) == [
        choices[1] | {"index": 0, "logprobs": None}
    ]


def test_the_rest_of_an_answer_stays_as_it_is() -> None:
    answer = {"id": "x", "usage": {"total_tokens": 9}, "choices": [completion_choice(0, 0.0)]}
    assert Ranking(1, 1, ranked=False, shows_logprobs=True).best(answer) == answer


# The request to vLLM's server:


@pytest.mark.parametrize(
    ("body", "logprobs", "shows_logprobs"),
    [
        ({"messages": [], "logprobs": False}, True, False),
        ({"messages": [], "logprobs": True}, True, True),
        ({"prompt": ""}, 0, False),
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
    assert ranking == Ranking(2, width, ranked=True, shows_logprobs=False)
    assert body == {"prompt": "", "n": width}
