"""Pages of lists: what callers ask for, and OpenAI's objects."""

from dataclasses import dataclass
from typing import Any

import pytest

from worker.dialects.openai.listing import NewestFirst, PageQuery, list_object
from worker.errors import InvalidInput
from worker.volume.pages import LARGEST, LARGEST_BYTES, page


@dataclass(frozen=True)
class Made:
    """An object of a list."""

    id: str
    created_at: int


def made(count: int) -> list[Made]:
    return [Made(f"{number}", number) for number in range(count)]


def plain(one: Made) -> dict[str, Any]:
    return {"id": one.id}


def large(one: Made) -> dict[str, Any]:
    return {"id": one.id, "metadata": "a" * (LARGEST_BYTES // 3)}


def test_a_page_ends_where_an_answer_would_be_too_large() -> None:
    """One caller's large objects must not make everybody's lists too large for a job."""
    first = list_object(page(made(5)), large)
    last = list_object(page(made(5), after="1"), large)
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (["4", "3"], True)
    assert (first["first_id"], first["last_id"]) == ("4", "3")
    assert ([one["id"] for one in last["data"]], last["has_more"]) == (["0"], False)


def test_a_page_has_openais_shape() -> None:
    data = [{"id": "3"}, {"id": "2"}]
    expected = {"object": "list", "data": data, "first_id": "3", "last_id": "2", "has_more": True}
    assert list_object(page(made(4), limit=2), plain) == expected
    nothing: dict[str, Any] = {"data": [], "first_id": None, "last_id": None, "has_more": False}
    for empty in (page(made(0)), page(made(4), after="0")):
        assert list_object(empty, plain) == {**expected, **nothing}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        *((PageQuery, f"limit={value}") for value in (0, -1, LARGEST + 1, "a")),
        (PageQuery, "order=up"),
        *((NewestFirst, f"limit={value}") for value in (0, 101)),
    ],
)
def test_a_wrong_bound_is_refused_by_name(query: type[PageQuery], param: str) -> None:
    name, _, value = param.partition("=")
    with pytest.raises(InvalidInput, match=f"^{name}: ") as refused:
        query.read({name: value})
    assert refused.value.param == name
