"""The files through which the worker and the process that trains, ``trainer``, communicate.

The trainer imports this module before anything heavy: it needs only pydantic.

An attempt at a training is a directory. The worker writes ``spec.json`` next to all attempts. The
training process writes only to the directory of its own attempt. It therefore does no harm if it
still runs after its worker has lost the lease of the fine-tune.
"""

import re
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# Names of the spec's file and of the directory of all attempts, in the directory of a fine-tune.
SPEC_FILE, ATTEMPTS_DIR = "spec.json", "attempts"
# Files in an attempt's directory. The events are lines of JSON, appended and flushed one by one: a
# ``ResumeEvent``, then one ``Event`` per line.
EVENTS_FILE = "events.jsonl"
# File with the ``Outcome``, written after the check of the rows, and replaced at the end.
OUTCOME_FILE = "outcome.json"
# Directories: the checkpoints from which transformers resumes (``checkpoint-<step>``), and the
# adapter of each epoch (``<step>``). Both appear under their names once they are complete and
# durable.
CHECKPOINTS_DIR, EPOCHS_DIR = "checkpoints", "epochs"
_CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")
# Directories for the rows as tokens, which each attempt writes again, and for an incomplete
# checkpoint. Both are removed at the end of the attempt, unless the process is killed.
TOKENS_DIR, SCRATCH_DIR = "tokens", ".writing"


def parse_checkpoint_step(checkpoint: str) -> int | None:
    """Return the number of steps in the name of a checkpoint; None for other names."""
    match = _CHECKPOINT_NAME.fullmatch(checkpoint)
    return int(match[1]) if match else None


class ExitStatus(IntEnum):
    """Exit statuses of the training process."""

    # The training or the check is over, and ``OUTCOME_FILE`` describes its outcome.
    FINISHED = 0
    # An exception ended the attempt; the last line of standard error has its type and message.
    CRASHED = 1
    # The volume is full or fails otherwise: another attempt may resume later.
    VOLUME_FAILURE = 74
    # SIGTERM stopped the process: another attempt may resume from the newest checkpoint.
    STOPPED = 75


# Command-line option to only check the rows.
CHECK_OPTION = "--check"


class ImmutableBaseModel(BaseModel):
    """Base class of immutable models that reject unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RowsFile(ImmutableBaseModel):
    """A file of rows."""

    path: Path
    form: Literal["csv", "jsonl"] | None = None  # None: detected from the file's suffix or content


class Lora(ImmutableBaseModel):
    """PEFT's configuration of an adapter, restricted to adapters that vLLM can serve."""

    model_config = ConfigDict(allow_inf_nan=False)

    r: Annotated[int, Field(ge=1, le=512)] = 16  # rank
    # Factor of the adapter's output, before the division by the rank.
    lora_alpha: Annotated[float, Field(gt=0)] = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    # Last parts of layers' names; None for the projections of attention and MLP.
    target_modules: tuple[str, ...] | None = None
    use_rslora: bool = False  # divides by the square root of the rank


class Hyperparameters(ImmutableBaseModel):
    """Hyperparameters of a training."""

    model_config = ConfigDict(allow_inf_nan=False)

    epochs: Annotated[int, Field(ge=1, lt=20)] = 5
    # The maximum, after a linear warm-up and before a cosine decay.
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    # Share of the steps in which the learning rate rises.
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.03
    weight_decay: Annotated[float, Field(ge=0)] = 1e-3  # AdamW's
    # Rows per step; None to choose it by the number of rows.
    batch_size: Annotated[int, Field(ge=1)] | None = None
    # Of the validation split, the rows' order, the initial weights and the dropout.
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 42
    lora: Lora = Lora()


class Spec(Hyperparameters):
    """The specification of a training."""

    model: Path  # directory
    tokenizer: Path  # directory
    chat_template: str | None = None  # the served one; None: the tokenizer's own
    trust_remote_code: bool = False  # whether code in the model's directory may run
    device: Literal["cuda", "cpu"] = "cpu"
    max_length: Annotated[int, Field(ge=2)]  # tokens per row; longer rows are cut at the end
    training: RowsFile
    validation: RowsFile | None = None  # None: a tenth of the training rows
    wandb: dict[str, Any] | None = None  # arguments of ``wandb.init``; None: no report


FileField = Literal["training_file", "validation_file"]


class RowMistake(ImmutableBaseModel):
    """A mistake in a file of rows."""

    file: FileField  # the field of the fine-tune's request that names the file
    line: int | None  # from 1 (which is the header in CSV); None for the whole file
    message: str  # without the row's text


class CheckResult(ImmutableBaseModel):
    """The result of the check of the rows, before any weights are loaded."""

    rows: int = 0  # to train on; a conversation may become several rows
    validation_rows: int = 0
    tokens: int = 0  # in the rows to train on, including prompts
    cut_rows: int = 0  # also those left out because no token of an answer remained
    warnings: tuple[str, ...] = ()  # whole sentences
    mistakes: tuple[RowMistake, ...] = ()  # the first ones; with any, there is no training
    more_mistakes: int = 0  # those that are not listed


class Event(ImmutableBaseModel):
    """A message, or the metrics of a step."""

    at: float  # Unix time in seconds
    level: Literal["info", "warn", "error"] = "info"
    message: str  # for metrics, a Python dict as text, as in LLM Engine's events
    step: int = 0  # completed steps
    # By the names of transformers' Trainer: ``loss``, ``grad_norm``, ``learning_rate``,
    # ``epoch``, ``eval_loss``; empty for messages.
    metrics: dict[str, float] = Field(default_factory=dict)


class ResumeEvent(ImmutableBaseModel):
    """The first line of an attempt's events, with the step from which the attempt resumes."""

    resumed_at: int


class Outcome(ImmutableBaseModel):
    """What has become of an attempt."""

    check: CheckResult = CheckResult()
    # Whether the training is over, with an adapter or with an error that no retry changes.
    # Otherwise another attempt may continue this one.
    is_over: bool = False
    steps: int = 0  # completed
    # The step of the epoch whose adapter, in ``EPOCHS_DIR``, is the result. Another attempt
    # may have it, from which this one resumed.
    best_step: int = 0
    # Loss of that adapter on the validation rows; None without an evaluation.
    best_loss: float | None = None
    trained_tokens: int = 0  # in the rows to train on, times the number of epochs
    batch_size: int = 0  # rows per step
    error: str | None = None  # why there is no adapter, in one sentence
