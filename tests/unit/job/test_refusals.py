"""Inputs that are refused: the message and the parameter of each, and no value in them."""

from typing import Any

import pytest
from support.tables import refused_jobs, refused_work
from support.tables.refused_jobs import RAW

from worker.errors import InvalidInput
from worker.job import ACCEPTED_INPUTS, SHAPES, parse_input


@pytest.mark.parametrize(
    ("param", "message", "payload"),
    [
        pytest.param(*case, id=ascii(case[1])[1:60])
        for case in (*refused_jobs.refused(), *refused_work.refused())
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_would_be_right(
    param: str | None, message: str, payload: Any
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input(payload)
    assert (caught.value.message, caught.value.param) == (message, param)


def test_a_message_names_no_more_than_the_first_mistakes() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input({**RAW, **{f"zzz{number}": 1 for number in range(99)}})
    assert caught.value.message.count("unknown key") == 5


def test_the_accepted_inputs_show_every_shape() -> None:
    assert all(any(f'"{mark}"' in ACCEPTED_INPUTS for mark in shape.marks) for shape in SHAPES)
