"""Pages of lists: what callers ask in the query string, and the objects of pages."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from worker.validation import Query
from worker.volume.pages import LARGEST, Listed, Page, fitting, page

T = TypeVar("T", bound=Listed)


class PageQuery(Query):
    """A page of a list, in OpenAI's words."""

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=LARGEST)] = LARGEST
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class NewestFirst(PageQuery):
    """A page of a list that has one order."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20

    def of(self, found: Iterable[T], view: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
        """Return the page of a list, of which each object is made by ``view``."""
        return list_object(page(found, after=self.after, limit=self.limit), view)


def list_object(found: Page[T], view: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
    """Return a page as OpenAI's object, of which each object is made by ``view``."""
    data = fitting(map(view, found.data))
    ids = [one.id for one in found.data[: len(data)]]
    return {
        "object": "list",
        "data": data,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": found.has_more or len(ids) < len(found.data),
    }
