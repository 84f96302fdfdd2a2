"""What callers ask of a list in the query string: which page of it."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worker.validation import invalid_fields
from worker.volume.pages import LARGEST


class Listing(BaseModel):
    """A page of a list, in OpenAI's words; what else stands in the query has no effect."""

    # Not strict: all values of a query string are texts.
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=LARGEST)] = LARGEST
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """Validate a query string; an empty value counts as absent.

        Raises:
            InvalidInput: naming what is wrong.
        """
        try:
            return cls.model_validate({name: value for name, value in query.items() if value})
        except ValidationError as error:
            raise invalid_fields(error) from None
