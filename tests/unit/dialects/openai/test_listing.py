"""Pages of lists: their queries, and OpenAI's list objects."""

from dataclasses import dataclass
from typing import Any

import pytest

from worker.dialects.openai.listing import NewestFirstQuery, PageQuery, make_list_object
from worker.errors import InvalidInput
from worker.volume.pages import MAX_BYTES, MAX_OBJECTS, paginate


@dataclass(frozen=True)
class ListedObject:
    """An object of a list."""

    id: str
    created_at: int


def make_objects(count: int) -> list[ListedObject]:
    return [ListedObject(f"{number}", number) for number in range(count)]


def describe(item: ListedObject) -> dict[str, Any]:
    return {"id": item.id}


def describe_large(item: ListedObject) -> dict[str, Any]:
    return {"id": item.id, "metadata": "a" * (MAX_BYTES // 3)}


def test_a_page_ends_before_it_is_too_large_for_a_response() -> None:
    """Large objects of one caller must not make the lists of all callers too large for a job."""
    first_page = make_list_object(paginate(make_objects(5)), describe_large)
    last_page = make_list_object(paginate(make_objects(5), after="1"), describe_large)
    assert ([item["id"] for item in first_page["data"]], first_page["has_more"]) == (
        ["4", "3"],
        True,
    )
    assert (first_page["first_id"], first_page["last_id"]) == ("4", "3")
    assert ([item["id"] for item in last_page["data"]], last_page["has_more"]) == (["0"], False)


def test_a_page_has_openais_shape() -> None:
    data = [{"id": "3"}, {"id": "2"}]
    expected = {"object": "list", "data": data, "first_id": "3", "last_id": "2", "has_more": True}
    assert make_list_object(paginate(make_objects(4), limit=2), describe) == expected
    empty_fields: dict[str, Any] = {
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    for empty_page in (paginate(make_objects(0)), paginate(make_objects(4), after="0")):
        assert make_list_object(empty_page, describe) == {**expected, **empty_fields}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        *((PageQuery, f"limit={value}") for value in (0, -1, MAX_OBJECTS + 1, "a")),
        (PageQuery, "order=up"),
        *((NewestFirstQuery, f"limit={value}") for value in (0, 101)),
    ],
)
def test_an_invalid_parameter_of_a_query_is_refused_by_name(
    query: type[PageQuery], param: str
) -> None:
    name, _, value = param.partition("=")
    with pytest.raises(InvalidInput, match=f"^{name}: ") as caught:
        query.from_query({name: value})
    assert caught.value.param == name
