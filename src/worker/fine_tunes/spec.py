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
    """A file of rows.

    Args:
        path: Path of the file.
        form: Format of the file; None to detect it from the file's suffix or content.
    """

    path: Path
    form: Literal["csv", "jsonl"] | None = None


class Lora(ImmutableBaseModel):
    """PEFT's configuration of an adapter, restricted to adapters that vLLM can serve.

    Args:
        r: Rank.
        lora_alpha: Factor of the adapter's output, before the division by the rank.
        lora_dropout: Dropout during training.
        target_modules: Last parts of layers' names; None for the projections of attention and MLP.
        use_rslora: Whether to divide by the square root of the rank instead of the rank.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    r: Annotated[int, Field(ge=1, le=512)] = 16
    lora_alpha: Annotated[float, Field(gt=0)] = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    target_modules: tuple[str, ...] | None = None
    use_rslora: bool = False


class Hyperparameters(ImmutableBaseModel):
    """Hyperparameters of a training.

    Args:
        epochs: Number of passes over the rows.
        learning_rate: Maximum learning rate, after a linear warm-up and before a cosine decay.
        warmup_ratio: Share of the steps in which the learning rate rises.
        weight_decay: Weight decay of AdamW.
        batch_size: Rows per step; None to choose it by the number of rows.
        seed: Seed of the validation split, the rows' order, the initial weights and the dropout.
        lora: Configuration of the adapter.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    epochs: Annotated[int, Field(ge=1, lt=20)] = 5
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.03
    weight_decay: Annotated[float, Field(ge=0)] = 1e-3
    batch_size: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 42
    lora: Lora = Lora()


class Spec(Hyperparameters):
    """The specification of a training.

    Args:
        model: Directory of the base model.
        tokenizer: Directory of its tokenizer.
        chat_template: The served chat template; None for the tokenizer's own.
        trust_remote_code: Whether code in the model's directory may run.
        device: "cuda" or "cpu".
        max_length: Maximum number of tokens per row; longer rows are cut at the end.
        training: File of the rows to train on.
        validation: File of validation rows; None to choose a tenth of the training rows.
        wandb: Arguments of ``wandb.init``; None for no report to Weights & Biases.
    """

    model: Path
    tokenizer: Path
    chat_template: str | None = None
    trust_remote_code: bool = False
    device: Literal["cuda", "cpu"] = "cpu"
    max_length: Annotated[int, Field(ge=2)]
    training: RowsFile
    validation: RowsFile | None = None
    wandb: dict[str, Any] | None = None


FileField = Literal["training_file", "validation_file"]


class RowMistake(ImmutableBaseModel):
    """A mistake in a file of rows.

    Args:
        file: The field of the fine-tune's request that names the file.
        line: Number of the line, from 1 (which is the header in CSV); None for the whole file.
        message: Description of the mistake and its correction, without the row's text.
    """

    file: FileField
    line: int | None
    message: str


class CheckResult(ImmutableBaseModel):
    """The result of the check of the rows, before any weights are loaded.

    Args:
        rows: Number of rows to train on. A conversation may become several rows.
        validation_rows: Number of rows for validation.
        tokens: Number of tokens in the rows to train on, including prompts.
        cut_rows: Number of rows that were cut, or left out because no token of an answer remained.
        warnings: Warnings, in whole sentences.
        mistakes: The first mistakes in the rows. There is no training if there are mistakes.
        more_mistakes: Number of mistakes that are not listed.
    """

    rows: int = 0
    validation_rows: int = 0
    tokens: int = 0
    cut_rows: int = 0
    warnings: tuple[str, ...] = ()
    mistakes: tuple[RowMistake, ...] = ()
    more_mistakes: int = 0


class Event(ImmutableBaseModel):
    """A message, or the metrics of a step.

    Args:
        at: Unix time in seconds.
        level: Severity.
        message: The message; for metrics, a Python dict as text, as in LLM Engine's events.
        step: Number of completed steps.
        metrics: Metrics by the names of transformers' Trainer: ``loss``, ``grad_norm``,
            ``learning_rate``, ``epoch``, ``eval_loss``; empty for messages.
    """

    at: float
    level: Literal["info", "warn", "error"] = "info"
    message: str
    step: int = 0
    metrics: dict[str, float] = Field(default_factory=dict)


class ResumeEvent(ImmutableBaseModel):
    """The first line of an attempt's events, with the step from which the attempt resumes."""

    resumed_at: int


class Outcome(ImmutableBaseModel):
    """What has become of an attempt.

    Args:
        check: Result of the check of the rows.
        is_over: Whether the training is over, with an adapter or with an error that no retry
            changes. Otherwise another attempt may continue this one.
        steps: Number of completed steps.
        best_step: Step of the epoch whose adapter, in ``EPOCHS_DIR``, is the result. Another
            attempt may have it, from which this one resumed.
        best_loss: Loss of that adapter on the validation rows; None without an evaluation.
        trained_tokens: Number of tokens in the rows to train on, times the number of epochs.
        batch_size: Number of rows per step.
        error: The reason why there is no adapter, in one sentence; None if there is an adapter.
    """

    check: CheckResult = CheckResult()
    is_over: bool = False
    steps: int = 0
    best_step: int = 0
    best_loss: float | None = None
    trained_tokens: int = 0
    batch_size: int = 0
    error: str | None = None
