"""Fine-tunes as callers ask for them: jobs that run one, and requests that create one."""

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from worker.errors import InvalidInput
from worker.job.base import LongJob, Runtime
from worker.validation import Metadata, Strict, Text

Name = Annotated[Text, Field(min_length=1)]


def _plain(suffix: str) -> str:
    if not re.fullmatch("[A-Za-z0-9-]*", suffix):
        raise ValueError("Input should be letters, digits and dashes")
    return suffix


# A part of the adapter's name.
Suffix = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_plain)]
SUPERVISED = "supervised"


class Supervised(Strict):
    """OpenAI's parameters of supervised fine-tuning."""

    hyperparameters: dict[str, Any] | None = None


class Method(Strict):
    """How to fine-tune, as OpenAI's API writes it: with pairs of prompts and answers only."""

    type: str
    supervised: Supervised | None = None
    dpo: Any = None
    reinforcement: Any = None

    @field_validator("type")
    @classmethod
    def _known(cls, name: str) -> str:
        if name != SUPERVISED:
            raise ValueError(f'"{SUPERVISED}": this worker trains by no other method')
        return name

    @model_validator(mode="after")
    def _no_other(self) -> Self:
        if self.dpo is not None or self.reinforcement is not None:
            raise ValueError(f'only the parameters of its type, "{SUPERVISED}"')
        return self


class Wandb(Strict):
    """What Weights & Biases is told of a fine-tune; the key is the worker's."""

    project: Name
    name: Name | None = None
    entity: Name | None = None
    tags: list[Name] | None = None


class Integration(Strict):
    """A service that metrics are sent to."""

    type: Literal["wandb"]
    wandb: Wandb


class FineTuneRequest(Strict):
    """What a fine-tune is to do.

    Args:
        model: the base model.
        training_file: the id of a file, a path on the volume, or an address to fetch it from;
            ``validation_file`` likewise; None: a tenth of the rows.
        hyperparameters: by the names of OpenAI or of LLM Engine; OpenAI's may also stand in
            ``method``.
        suffix: a part of the adapter's name.
        seed: of all that is left to chance.
        metadata: the caller's own, at most 16 pairs.
        integrations: at most one.
    """

    model: Name | None = None
    training_file: Name | None = None
    validation_file: Name | None = None
    hyperparameters: dict[str, Any] | None = None
    method: Method | None = None
    suffix: Suffix | None = None
    seed: int | None = None
    metadata: Metadata | None = None
    integrations: Annotated[list[Integration], Field(max_length=1)] | None = None

    @model_validator(mode="after")
    def _hyperparameters_once(self) -> Self:
        if self.hyperparameters is not None and self.holder != "hyperparameters":
            message = "hyperparameters: here, or in method.supervised, but not in both"
            raise InvalidInput(message, param="hyperparameters")
        return self

    @property
    def holder(self) -> str:
        """Where the hyperparameters stand."""
        supervised = self.method and self.method.supervised
        if supervised and supervised.hyperparameters is not None:
            return "method.supervised.hyperparameters"
        return "hyperparameters"

    @property
    def given(self) -> dict[str, Any]:
        """The hyperparameters, as they were written."""
        supervised = self.method and self.method.supervised
        return (supervised and supervised.hyperparameters) or self.hyperparameters or {}

    @property
    def wandb(self) -> dict[str, Any] | None:
        """What Weights & Biases is told; None: nothing."""
        if not self.integrations:
            return None
        return self.integrations[0].wandb.model_dump(exclude_none=True)


class CreateFineTune(FineTuneRequest):
    """A request for a fine-tune: the body of ``POST /v1/fine_tuning/jobs``."""

    model: Name
    training_file: Name


class FineTuneSpec(FineTuneRequest):
    """A fine-tune as a job has it: one to create, or one to go on with.

    Args:
        id: of a fine-tune that is there; then nothing else is given, but for the time.
        rows: to train on, themselves.
        training_path: of a file on the volume.
        max_runtime_sec: the most that this job may take.
    """

    id: str | None = None
    rows: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    training_path: Name | None = None
    max_runtime_sec: Runtime | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = (self.id, self.training_file, self.training_path, self.rows)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("one of id, training_file, training_path and rows")
        given = {name for name in self.model_fields_set if getattr(self, name) is not None}
        if self.id is not None and given - {"id", "max_runtime_sec"}:
            raise ValueError("a fine-tune that is there goes on with its id alone")
        return self


class FineTuneJob(LongJob):
    """A job that runs a fine-tune."""

    kind: ClassVar[str] = "fine_tune"
    marks: ClassVar[frozenset[str]] = frozenset({kind})

    fine_tune: FineTuneSpec
