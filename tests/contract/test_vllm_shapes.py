"""Refusals of bodies of the wrong shape: they name fields, never their values."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from worker.engine.translation import translated, wrong_shape
from worker.errors import InvalidInput


class Part(BaseModel):
    kind: Literal["a", "b"]
    text: str


class Shape(BaseModel):
    one: int
    many: list[str] | list[Part]
    either: Part | str | None = None
    held: dict[str, int] = {}
    more: tuple[int, int, int, int, int, int] = (1, 2, 3, 4, 5, 6)


def refusal_of(value: Any, of: Any = Shape) -> InvalidInput:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(of).validate_python(value)
    return wrong_shape(caught.value)


SECRET = "s3cret!"
VALUES = st.recursive(
    st.sampled_from([None, 1, True, 1.5, SECRET, SECRET.encode()]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*Shape.model_fields]), VALUES))
@settings(deadline=None, database=None)
def test_a_refusal_names_fields_and_no_values(value: Any) -> None:
    try:
        Shape.model_validate(value)
    except ValidationError as invalid:
        refusal = wrong_shape(invalid)
        lines = refusal.message.split("; ")
        assert 1 <= len(lines) <= 5
        places = [line.split(": ")[0] for line in lines]
        assert {place.split(".")[0] for place in places} <= set(Shape.model_fields)
        assert refusal.param == places[0]
        assert SECRET not in refusal.message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"one": "x", "many": []},
            "one: Input should be a valid integer, unable to parse string as an integer",
        ),
        ({"many": []}, "one: Field required"),
        ({"one": 1, "many": 5}, "many: Input should be a valid list"),
        (
            {"one": 1, "many": [], "held": {"k": "x"}},
            "held.k: Input should be a valid integer, unable to parse string as an integer",
        ),
        (
            {"one": 1, "many": [], "either": {"kind": "c", "text": ""}},
            "either.kind: Input should be 'a' or 'b'; either: Input should be a valid string",
        ),
    ],
)
def test_a_field_is_named_once(value: Any, message: str) -> None:
    assert refusal_of(value).message == message


def test_the_most_frequent_mistake_of_a_types_alternatives_is_reported() -> None:
    class First(BaseModel):
        kind: str
        text: str

    class Second(BaseModel):
        kind: str

    class Holder(BaseModel):
        held: First | Second

    assert refusal_of({"held": {}}, Holder).message == "held.kind: Field required"


def test_no_more_than_five_mistakes_are_reported() -> None:
    messages = refusal_of({"one": 1, "many": [], "more": ["x"] * 6}).message.split("; ")
    assert [line.split(":")[0] for line in messages] == [f"more.{place}" for place in range(5)]


def test_the_location_of_the_body_is_not_part_of_a_message() -> None:
    class Request(BaseModel):
        body: Shape

    assert refusal_of({"body": {"many": []}}, Request).param == "one"
    with (
        pytest.raises(InvalidInput, match=r"^one: Field required$"),
        translated(SimpleNamespace(errored=False)),
    ):
        Request.model_validate({"body": {"many": []}})
