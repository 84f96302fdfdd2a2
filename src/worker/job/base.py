"""What all shapes of a job's input share: the chunk keys, and SYSTEM_PROMPT."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, Field, ValidationError

from worker.validation import Strict, invalid_fields

# Amounts of pieces, a factor, milliseconds.
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Seconds that one job may take for work that others go on with.
Runtime = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Job(Strict):
    """A validated input, with the keys that every shape may have: how its stream is chunked.

    For the three sizes, 0 or null is the worker's default; for the delay, null is, and 0 is off.
    """

    # Keys that only inputs of this shape have: any of them is enough.
    marks: ClassVar[frozenset[str]]
    # Other names that callers use for a field, by the field.
    other_names: ClassVar[Mapping[str, str]] = {}
    # Keys that callers write though inputs of this shape have none such, with what to write.
    misplaced: ClassVar[Mapping[str, str]] = {}

    max_batch_size: Annotated[int, Field(ge=0)] | None = None
    min_batch_size: Amount | None = None
    batch_size_growth_factor: Amount | None = None
    max_batch_delay_ms: Amount | None = None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Validate an input that has no null values.

        Raises:
            InvalidInput: naming the first few fields that are wrong, without their values.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            known = {*_keys(cls), *cls.other_names.values()}
            written = {ours: other for ours, other in cls.other_names.items() if other in values}
            raise invalid_fields(error, known, written, misplaced=cls.misplaced) from None


class LongJob(Job):
    """A job that runs long work; its answer is one yield."""

    # The key of the input that has the work: a row in the table of kinds.
    kind: ClassVar[str]
    stream: ClassVar[bool] = False


def _keys(model: type[BaseModel]) -> Iterator[str]:
    """Return the names of a model's fields, and of those of its objects: ``batch.id``."""
    for name, field in model.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from (f"{name}.{inner}" for inner in field.annotation.model_fields)


def with_system_prompt(
    conversation: list[dict[str, Any]], system: str | None
) -> list[dict[str, Any]]:
    """Prepend SYSTEM_PROMPT, unless the conversation has a system or developer message."""
    roles = {str(message.get("role")) for message in conversation}
    if system is None or roles & {"system", "developer"}:
        return conversation
    return [{"role": "system", "content": system}, *conversation]
