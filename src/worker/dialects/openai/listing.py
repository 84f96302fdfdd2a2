"""Pages of lists: the query parameters that select a page, and the objects that describe it."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from worker.validation import QueryModel
from worker.volume.ids import UNKNOWN_LOCATION, VolumeLocation
from worker.volume.pages import MAX_OBJECTS, Listable, Page, paginate, truncate_page

T = TypeVar("T", bound=Listable)


class PageQuery(QueryModel):
    """The query parameters for a page of a list, as OpenAI names them."""

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_OBJECTS)] = MAX_OBJECTS
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class NewestFirstQuery(PageQuery):
    """The query parameters for a page of a list that is always sorted from newest to oldest."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20

    def make_page(
        self,
        items: Iterable[T],
        convert: Callable[[T], dict[str, Any]],
        location: VolumeLocation = UNKNOWN_LOCATION,
    ) -> dict[str, Any]:
        """Return a page of items as OpenAI's list object; ``convert`` makes an item's object."""
        page = paginate(items, after=self.after, limit=self.limit, location=location)
        return make_list_object(page, convert)


def make_list_object(page: Page[T], convert: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
    """Return a page as OpenAI's list object, with as many of its objects as fit a response."""
    data = truncate_page(map(convert, page.data))
    ids = [item.id for item in page.data[: len(data)]]
    return {
        "object": "list",
        "data": data,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": page.has_more or len(ids) < len(page.data),
    }
