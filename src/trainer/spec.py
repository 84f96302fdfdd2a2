"""The files that a training reads and leaves, by which two processes communicate.

An attempt at a training is a directory. The worker writes ``spec.json`` beside all attempts; the
process writes the other files, into the directory of its own attempt only. So a process that
outlives its lease can harm nothing.
"""

import re
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# Beside the attempts.
SPEC, ATTEMPTS = "spec.json", "attempts"
# In an attempt's directory. Lines of JSON, one ``Event`` each, appended and flushed one by one.
EVENTS = "events.jsonl"
# Written once: the data are right, or what is wrong with them (``Checked``).
CHECKED = "checked.json"
# Written once, last: the training is over (``Outcome``).
OUTCOME = "outcome.json"
# Directories: what transformers resumes from (``checkpoint-<step>``), the adapter of each epoch
# (``<step>``), the best adapter. Each appears under its name when it is whole and durable.
CHECKPOINTS, EPOCHS, RESULT = "checkpoints", "epochs", "result"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# Data as tokens, written again by each attempt, and a checkpoint that is being written; neither is
# there when the attempt is over, unless it was killed.
TOKENS, WRITING = "tokens", ".writing"


def step_of(checkpoint: str) -> int | None:
    """Return the steps done at a checkpoint, by its name; None: it is none."""
    match = _CHECKPOINT.fullmatch(checkpoint)
    return int(match[1]) if match else None


class Exit(IntEnum):
    """How the process ends."""

    # ``OUTCOME`` says how the training ended.
    OVER = 0
    # A defect, or a lack of memory; the last lines of standard error say which.
    CRASHED = 1
    # The volume is full or can't be written to: another attempt may go on later.
    VOLUME = 74
    # Asked by SIGTERM, after a checkpoint: another attempt goes on.
    STOPPED = 75


# The option of a process that checks the rows, and trains nothing: it leaves ``CHECKED``, and
# ``OUTCOME`` if there are mistakes.
ONLY_CHECK = "--check"


class Frozen(BaseModel):
    """A value that is checked once, and does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Data(Frozen):
    """A file of rows.

    Args:
        path: of the file.
        form: how it is written; None: as its name or its first line says.
    """

    path: Path
    form: Literal["csv", "jsonl"] | None = None


class Lora(Frozen):
    """PEFT's configuration of an adapter, as far as vLLM can serve it.

    Args:
        r: rank.
        lora_alpha: scale of the adapter, in units of the rank.
        lora_dropout: while training.
        target_modules: names of layers; None: the attention's and the MLP's projections.
        use_rslora: scale by the root of the rank.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    r: Annotated[int, Field(ge=1, le=512)] = 16
    lora_alpha: Annotated[float, Field(gt=0)] = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    target_modules: tuple[str, ...] | None = None
    use_rslora: bool = False


class Hyperparameters(Frozen):
    """How an adapter is trained.

    Args:
        epochs: how often each row is seen.
        learning_rate: the largest; it rises to it, and falls as a cosine.
        warmup_ratio: the part of the steps in which it rises.
        weight_decay: AdamW's.
        batch_size: rows of a step; None: chosen by the number of rows.
        seed: of the split, the order, the adapter's first weights and the dropout.
        lora: the adapter.
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
    """A training.

    Args:
        model: directory of the base model; ``tokenizer`` likewise.
        chat_template: that the served model renders conversations by; None: the tokenizer's own.
        trust_remote_code: whether code in the model's directory may run.
        device: "cuda" or "cpu".
        max_length: the tokens of a row; what is longer is cut at its end.
        training: the rows; ``validation`` likewise; None: a tenth of the rows, chosen by the seed.
        wandb: arguments of Weights & Biases, whose key is in the environment; None: no report.
    """

    model: Path
    tokenizer: Path
    chat_template: str | None = None
    trust_remote_code: bool = False
    device: Literal["cuda", "cpu"] = "cpu"
    max_length: Annotated[int, Field(ge=2)]
    training: Data
    validation: Data | None = None
    wandb: dict[str, Any] | None = None


File = Literal["training_file", "validation_file"]


class Mistake(Frozen):
    """Something wrong in a file of rows.

    Args:
        file: which one.
        line: its number, from 1 (in CSV the header's); None: the file as a whole.
        message: what is wrong and what would be right, without the row's text.
    """

    file: File
    line: int | None
    message: str


class Checked(Frozen):
    """What a look at the data has found, before any weights are loaded.

    Args:
        rows: to train on; ``validation_rows``: held out.
        tokens: of the rows to train on, in one epoch.
        cut_rows: that were longer than ``max_length``.
        warnings: in whole sentences.
        mistakes: then nothing is trained; the first ones, if there are many.
        more_mistakes: how many are not listed.
    """

    rows: int = 0
    validation_rows: int = 0
    tokens: int = 0
    cut_rows: int = 0
    warnings: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    more_mistakes: int = 0


class Event(Frozen):
    """A message or the metrics of a step.

    Args:
        at: seconds since 1970.
        level: how bad it is.
        message: LLM Engine's for metrics: the text of the numbers as a Python dict.
        step: the number of steps done.
        metrics: numbers by the names that transformers' Trainer gives them: ``loss``,
            ``grad_norm``, ``learning_rate``, ``epoch``, ``eval_loss``; empty: only a message.
    """

    at: float
    level: Literal["info", "warn", "error"] = "info"
    message: str
    step: int = 0
    metrics: dict[str, float] = Field(default_factory=dict)


class Resumed(Frozen):
    """The first line of an attempt's events: the step that it goes on from."""

    resumed_at: int


class Outcome(Frozen):
    """How a training ended: with an adapter in ``RESULT``, or by a failure that stays one.

    Args:
        steps: done.
        best_step: whose adapter is the result.
        best_loss: its loss on the validation rows.
        trained_tokens: that were learned from, over all epochs.
        batch_size: rows of a step, as they were chosen.
        error: why there is no adapter, in one sentence; None: there is one.
    """

    steps: int = 0
    best_step: int = 0
    best_loss: float | None = None
    trained_tokens: int = 0
    batch_size: int = 0
    error: str | None = None
