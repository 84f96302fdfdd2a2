"""Pydantic models for files of a fine-tune on the volume: its request, decision and result."""

from collections.abc import Mapping
from typing import Any, Literal

from worker.fine_tunes.hyperparameters import LEARNING_RATE
from worker.fine_tunes.spec import Hyperparameters
from worker.long_work.records import StoredRequest, TimedModel
from worker.validation import StrictModel

FineTuneStatus = Literal["succeeded", "failed", "cancelled"]


class StoredFineTune(StoredRequest, StrictModel):
    """A request for a fine-tune on the volume.

    Args:
        base: Served name of the base model.
        training_file: Id of the file with training rows.
        validation_file: Id of the file with validation rows; None to use a tenth of the training
            rows.
        spec: Hyperparameters of the training.
        suffix: Part of the adapter's name.
        metadata: Up to 16 key-value pairs from the caller.
        method: Method in OpenAI's API.
        wandb: Options for Weights & Biases, without the key; None to report nothing.
    """

    base: str
    training_file: str
    validation_file: str | None = None
    spec: Hyperparameters = Hyperparameters()
    suffix: str | None = None
    metadata: dict[str, str] | None = None
    method: Literal["supervised"] = "supervised"
    wandb: dict[str, Any] | None = None

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
    """The adapter to publish. It is chosen once, so that all workers publish the same one.

    Args:
        name: Name that the adapter is served by.
        attempt: Name of the directory of the attempt whose result is published.
    """

    name: str
    attempt: str


class FineTuneDecision(TimedModel, StrictModel):
    """How a fine-tune will end, decided once: by a cancel, or by the worker that runs it.

    Args:
        publishing: Adapter to publish, if the fine-tune succeeds.
    """

    status: FineTuneStatus
    publishing: AdapterChoice | None = None


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
    """The adapter of an epoch.

    Args:
        step: Completed steps at the end of the epoch.
        name: Name that the adapter is served by; None if it is not served.
    """

    step: int
    name: str | None = None


class FineTuneResult(TimedModel, StrictModel):
    """How a fine-tune ended.

    Args:
        error: Why the fine-tune failed; None if it didn't fail.
        adapter: Name of the adapter; None unless the fine-tune succeeded.
        checkpoints: Adapters of the epochs, ordered by their steps.
        result_file_ids: Ids of the files with the metrics and the adapter.
        trained_tokens: Tokens that were trained on, over all epochs.
        steps: Completed steps.
    """

    status: FineTuneStatus
    error: FailureReason | None = None
    adapter: str | None = None
    checkpoints: tuple[EpochCheckpoint, ...] = ()
    result_file_ids: tuple[str, ...] = ()
    trained_tokens: int = 0
    steps: int = 0
