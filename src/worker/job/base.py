"""The base classes of all jobs: the keys that all inputs may have, and those of long work."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from worker.validation import Metadata, StrictModel, check_encodable, to_invalid_input

# Type of the keys for chunking: a number of pieces, a factor, or milliseconds.
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# The caller's name for its user, which receipts store.
UserName = Annotated[str, Field(max_length=512), AfterValidator(check_encodable)]
# Seconds that one job may spend on long work, which other jobs can continue.
RuntimeSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Job(StrictModel):
    """A validated input. All shapes share the fields below.

    The first four control how a stream is chunked. For ``max_batch_delay_ms``, null selects the
    worker's default, and if it is 0, pieces wait until a chunk is full. For the other three, 0 and
    null select the default. The last three concern the job's receipt: whether the answer contains
    it, and the caller's names in it.
    """

    # Keys that only inputs of this shape have; one of them identifies the shape.
    marker_keys: ClassVar[frozenset[str]]
    # Other names that callers may use for fields, by field.
    aliases: ClassVar[Mapping[str, str]] = {}
    # Keys that a validator moves into a field.
    moved_keys: ClassVar[frozenset[str]] = frozenset()
    # Keys that callers set by mistake in inputs of this shape, with a hint for the error message.
    key_hints: ClassVar[Mapping[str, str]] = {}

    max_batch_size: Annotated[int, Field(ge=0)] | None = None
    min_batch_size: NonNegative | None = None
    batch_size_growth_factor: NonNegative | None = None
    max_batch_delay_ms: NonNegative | None = None
    receipt: bool = False
    user: UserName | None = None
    metadata: Metadata | None = None

    @property
    def receipt_names(self) -> tuple[str | None, Mapping[str, str]]:
        """The caller's name for its user, and its labels."""
        return self.user, self.metadata or {}

    @classmethod
    def from_input(cls, values: Mapping[str, Any]) -> Self:
        """Validate an input, from which the caller has already dropped null values."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            known_keys = {*cls.model_fields, *cls.aliases.values(), *cls.moved_keys}
            for name, field in cls.model_fields.items():
                # The keys of a nested model, such as ``batch.id``.
                if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                    known_keys |= {f"{name}.{inner}" for inner in field.annotation.model_fields}
            used_aliases = {field: alias for field, alias in cls.aliases.items() if alias in values}
            raise to_invalid_input(
                error, known_keys, used_aliases, key_hints=cls.key_hints
            ) from None


class ContinueOptions(StrictModel):
    """How a job continues long work."""

    max_runtime_sec: RuntimeSeconds | None = None
    passes: Annotated[int, Field(ge=0)] = 0  # workers on other volumes that have passed this job on
    # The worker runs the work without a job of the platform, which may stop it as idle.
    background: bool = False


class LongJob(Job):
    """A job that runs long work (a batch or a fine-tune); its answer is one yield."""

    # Key under which the input contains the work; also the key of this kind in ``routes.kinds``.
    kind: ClassVar[str]
    stream: ClassVar[bool] = False

    @property
    def continue_options(self) -> ContinueOptions:
        options: ContinueOptions = getattr(self, self.kind)
        return options
