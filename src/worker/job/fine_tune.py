"""Inputs for fine-tunes: jobs that run a fine-tune, and requests that create one."""

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from worker.errors import field_error
from worker.job.base import ContinueOptions, LongJob
from worker.validation import Metadata, StrictModel, check_encodable

# A name, an id, a path or a URL, which may be signed.
NonEmptyText = Annotated[str, Field(min_length=1, max_length=8192), AfterValidator(check_encodable)]


def _check_suffix(suffix: str) -> str:
    if not re.fullmatch("[A-Za-z0-9-]*", suffix):
        raise ValueError("Input should be letters, digits and dashes")
    return suffix


# The caller's part of the adapter's name.
Suffix = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_check_suffix)]
SUPERVISED = "supervised"


class SupervisedParameters(StrictModel):
    """OpenAI's parameters of supervised fine-tuning."""

    hyperparameters: dict[str, Any] | None = None


class FineTuneMethod(StrictModel):
    """The fine-tuning method in OpenAI's format; only supervised fine-tuning is accepted."""

    type: str
    supervised: SupervisedParameters | None = None
    dpo: Any = None
    reinforcement: Any = None

    @field_validator("type")
    @classmethod
    def _check_type(cls, name: str) -> str:
        if name != SUPERVISED:
            raise ValueError(f'"{SUPERVISED}": this worker trains by no other method')
        return name

    @model_validator(mode="after")
    def _refuse_other_methods(self) -> Self:
        if self.dpo is not None or self.reinforcement is not None:
            raise ValueError(f'only the parameters of its type, "{SUPERVISED}"')
        return self


# A name at Weights & Biases, which is stored with the fine-tune. Its own limits are lower.
WandbName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(check_encodable)]


class WandbOptions(StrictModel):
    """The options of Weights & Biases for a fine-tune; the operator sets the API key."""

    project: NonEmptyText
    name: WandbName | None = None
    entity: WandbName | None = None
    tags: Annotated[list[WandbName], Field(max_length=64)] | None = None


class Integration(StrictModel):
    """A service that receives the metrics of a fine-tune: only Weights & Biases."""

    type: Literal["wandb"]
    wandb: WandbOptions


class FineTuneRequest(StrictModel):
    """The parameters of a fine-tune.

    A file is the id of a file, a path on the volume, or a URL to download from. The hyperparameters
    have the names of OpenAI or LLM Engine, and may be in ``method`` instead.
    """

    model: NonEmptyText | None = None  # None: the worker's own
    training_file: NonEmptyText | None = None
    validation_file: NonEmptyText | None = None  # None: a tenth of the training rows
    hyperparameters: dict[str, Any] | None = None
    method: FineTuneMethod | None = None
    suffix: Suffix | None = None  # the caller's part of the adapter's name
    seed: int | None = None
    metadata: Metadata | None = None
    integrations: Annotated[list[Integration], Field(max_length=1)] | None = None

    @model_validator(mode="after")
    def _check_hyperparameters_once(self) -> Self:
        if self.hyperparameters is not None and self.hyperparameters_field != "hyperparameters":
            raise field_error("hyperparameters", "here, or in method.supervised, but not in both")
        return self

    @property
    def hyperparameters_field(self) -> str:
        supervised = self.method and self.method.supervised
        if supervised and supervised.hyperparameters is not None:
            return "method.supervised.hyperparameters"
        return "hyperparameters"

    @property
    def raw_hyperparameters(self) -> dict[str, Any]:
        supervised = self.method and self.method.supervised
        return (supervised and supervised.hyperparameters) or self.hyperparameters or {}

    @property
    def wandb_options(self) -> dict[str, Any] | None:
        """None if the fine-tune sends no metrics."""
        if not self.integrations:
            return None
        return self.integrations[0].wandb.model_dump(exclude_none=True)


class CreateFineTune(FineTuneRequest):
    """A request that creates a fine-tune: the body of ``POST /v1/fine_tuning/jobs``."""

    model: NonEmptyText
    training_file: NonEmptyText


class FineTuneSpec(FineTuneRequest, ContinueOptions):
    """The fine-tune of a job: a new one, or an existing one to continue.

    With the ``id`` of an existing fine-tune, only the keys of ``ContinueOptions`` may be set.
    """

    id: str | None = None
    rows: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    training_path: NonEmptyText | None = None  # on the volume

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        sources = (self.id, self.training_file, self.training_path, self.rows)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("one of id, training_file, training_path and rows")
        set_fields = {name for name in self.model_fields_set if getattr(self, name) is not None}
        if self.id is not None and set_fields - {"id", *ContinueOptions.model_fields}:
            raise ValueError("an existing fine-tune is continued with its id alone")
        if self.id is None and (self.passes or self.background):
            raise ValueError("passes, background: only with id")
        return self


class FineTuneJob(LongJob):
    """A job that runs a fine-tune."""

    kind: ClassVar[str] = "fine_tune"
    marker_keys: ClassVar[frozenset[str]] = frozenset({kind})

    fine_tune: FineTuneSpec
