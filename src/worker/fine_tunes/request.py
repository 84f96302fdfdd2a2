"""Pydantic models for files of a fine-tune on the volume: its request, decision and result."""

from collections.abc import Mapping
from typing import Any, Literal

from worker.fine_tunes.hyperparameters import LEARNING_RATE
from worker.fine_tunes.spec import Hyperparameters
from worker.long_work.records import StoredRequest, TimedModel
from worker.validation import StrictModel

FineTuneStatus = Literal["succeeded", "failed", "cancelled"]


class StoredFineTune(StoredRequest, StrictModel):
    """A request for a fine-tune on the volume. Files are named by their ids."""

    base: str  # served name of the base model
    training_file: str
    validation_file: str | None = None  # None: a tenth of the training rows
    spec: Hyperparameters = Hyperparameters()
    suffix: str | None = None  # a part of the adapter's name
    metadata: dict[str, str] | None = None
    method: Literal["supervised"] = "supervised"
    wandb: dict[str, Any] | None = None  # without the key; None: report nothing

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def learning_rate_multiplier(self) -> float:
        """OpenAI's multiplier for the default learning rate."""
        return round(self.spec.learning_rate / LEARNING_RATE, 9)

    @property
    def input_file_ids(self) -> Mapping[str, str]:
        files = {"training_file": self.training_file, "validation_file": self.validation_file}
        return {field: file_id for field, file_id in files.items() if file_id is not None}


class AdapterChoice(StrictModel):
    """The adapter to publish. It is chosen once, so that all workers publish the same one."""

    name: str  # served by this name
    attempt: str  # directory of the attempt whose result is published


class FineTuneDecision(TimedModel, StrictModel):
    """How a fine-tune will end, decided once: by a cancel, or by the worker that runs it."""

    status: FineTuneStatus
    publishing: AdapterChoice | None = None  # if it succeeds


class FailureReason(StrictModel):
    """Why a fine-tune has failed, in OpenAI's format."""

    code: str
    message: str
    param: str | None = None


class FineTuneFailed(Exception):
    """A fine-tune has failed; ``error`` is the reason for the caller."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = FailureReason(code=code, message=message, param=param)


class EpochCheckpoint(StrictModel):
    """The adapter of an epoch."""

    step: int  # at the end of the epoch
    name: str | None = None  # None if it is not served


class FineTuneResult(TimedModel, StrictModel):
    """How a fine-tune ended."""

    status: FineTuneStatus
    error: FailureReason | None = None
    adapter: str | None = None  # its name, if the fine-tune succeeded
    checkpoints: tuple[EpochCheckpoint, ...] = ()  # ordered by their steps
    result_file_ids: tuple[str, ...] = ()  # the metrics and the adapter
    trained_tokens: int = 0  # over all epochs
    steps: int = 0
