"""What was asked of a fine-tune, and how it ended, as the volume keeps them."""

from collections.abc import Mapping
from typing import Any, Literal

from trainer.spec import Hyperparameters
from worker.fine_tunes.hyperparameters import LEARNING_RATE
from worker.long_work.record import Moment, StoredRequest
from worker.validation import Strict

Status = Literal["succeeded", "failed", "cancelled"]


class StoredFineTune(StoredRequest, Strict):
    """A request as the volume has it.

    Args:
        base: the served name of the model that the adapter is for.
        training_file: the id of the file of rows; ``validation_file`` likewise; None: a tenth of
            the rows.
        spec: how the adapter is trained.
        suffix: a part of the adapter's name.
        metadata: the caller's own, at most 16 pairs.
        method: of OpenAI's API.
        wandb: what Weights & Biases is told, without the key; None: nothing.
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
        """OpenAI's, which multiplies the default."""
        return round(self.spec.learning_rate / LEARNING_RATE, 9)

    @property
    def inputs(self) -> Mapping[str, str]:
        files = {"training_file": self.training_file, "validation_file": self.validation_file}
        return {field: file_id for field, file_id in files.items() if file_id is not None}


class Publishing(Strict):
    """Which adapter is published: whoever carries it out does the same.

    Args:
        name: that it is served by.
        attempt: the name of the directory whose result it is.
    """

    name: str
    attempt: str


class Decision(Moment, Strict):
    """How a fine-tune ends, decided once: by a cancel, or by whoever publishes or gives up.

    Args:
        publishing: what, if it succeeds.
    """

    status: Status
    publishing: Publishing | None = None


class Error(Strict):
    """Why a fine-tune has failed, in OpenAI's shape."""

    code: str
    message: str
    param: str | None = None


class Failed(Exception):
    """A fine-tune has failed; ``error`` is what it shows."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = Error(code=code, message=message, param=param)


class Checkpoint(Strict):
    """The adapter of an epoch.

    Args:
        step: the steps done by then.
        name: that it is served by; None: it is not.
    """

    step: int
    name: str | None = None


class FineTuneResult(Moment, Strict):
    """How a fine-tune ended.

    Args:
        error: why it has failed.
        adapter: the name of what it has made.
        checkpoints: by their steps.
        result_file_ids: of the files with its metrics, and of the adapter's own.
        trained_tokens: that were learned from, over all epochs.
        steps: done.
    """

    status: Status
    error: Error | None = None
    adapter: str | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    result_file_ids: tuple[str, ...] = ()
    trained_tokens: int = 0
    steps: int = 0
