"""JSON texts that are read value by value: the same values, wherever the text is cut."""

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.batches.llm_engine import texts
from worker.batches.llm_engine.texts import Text
from worker.errors import InvalidInput

LONGEST = 1_000


class InParts(io.StringIO):
    """A text that is read in parts of a few characters."""

    def __init__(self, content: str, part: int) -> None:
        super().__init__(content)
        self._part = part

    def read(self, size: int | None = -1) -> str:
        return super().read(self._part)


def text(content: str, part: int = LONGEST, longest: int = LONGEST) -> Text:
    return Text(InParts(content, part), longest)


def items(content: str, part: int = LONGEST, longest: int = LONGEST) -> list[Any]:
    read = text(content, part, longest)
    found = list(read.items())
    read.end()
    return found


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, database=None)
@given(
    st.lists(VALUES, max_size=5),
    st.integers(1, 40),
    st.sampled_from([None, 0, 2, "\t"]),
    st.booleans(),
)
def test_an_array_has_the_same_items_wherever_it_is_cut(
    values: list[Any], part: int, indent: int | str | None, ascii_only: bool
) -> None:
    content = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    assert items(content, part, longest=100_000) == values


@settings(deadline=None, database=None)
@given(st.dictionaries(st.text(), VALUES, max_size=5), st.integers(1, 40))
def test_an_object_has_the_same_members_wherever_it_is_cut(
    members: dict[str, Any], part: int
) -> None:
    read = text(json.dumps(members), part, longest=100_000)
    assert {key: read.value() for key in read.members()} == members
    read.end()


@pytest.mark.parametrize("part", [1, 3, LONGEST])
@pytest.mark.parametrize(
    "broken",
    [
        "",
        " ",
        "[",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1.]",
        "[1e]",
        "[tru]",
        "[1]]",
        "[1] x",
        "{}",
        '["a]',
        '["\\x"]',
        "[NaN]",
        "[-Infinity]",
        "[" * 100_000,
        "[" + "9" * 5_000 + "]",
        '{"a": 1}',
        "3",
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_json_array_is_refused(broken: str, part: int) -> None:
    with pytest.raises(InvalidInput):
        items(broken, part, longest=200_000)


@pytest.mark.parametrize(
    "broken", ["{", "{1: 2}", '{"a" 2}', '{"a": 2', '{"a": 2,}', "[]", '{"a": 2 "b"}']
)
def test_what_is_no_json_object_is_refused(broken: str) -> None:
    read = text(broken)
    with pytest.raises(InvalidInput):
        [read.value() for _ in read.members()]


def test_a_refusal_tells_what_was_expected_and_where() -> None:
    with pytest.raises(InvalidInput, match="a comma or the end of the array expected at 103"):
        items("[" + " " * 100 + "1 2]", part=10)


def test_a_mistake_is_not_searched_for_in_all_that_follows() -> None:
    opened = InParts("[oops" + " 1," * LONGEST, part=100)
    with pytest.raises(InvalidInput, match="a value expected at 1"):
        list(Text(opened, LONGEST).items())
    assert opened.tell() <= 200


def test_a_value_has_a_length_and_the_array_has_none() -> None:
    value = "x" * 80
    assert items(json.dumps([value] * 50), part=30, longest=120) == [value] * 50
    with pytest.raises(InvalidInput, match="more than 120 characters"):
        items(json.dumps(["x" * 500]), part=30, longest=120)


def test_only_a_part_of_a_long_array_is_held() -> None:
    part = texts.PART
    opened = io.StringIO(json.dumps(["x" * 100] * 100_000))
    found = Text(opened, LONGEST).items()
    assert next(found) == "x" * 100
    assert opened.tell() == part
