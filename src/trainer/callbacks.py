"""What happens beside a training's steps: its numbers are written, its state is saved."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer import checkpoints
from trainer.endings import Failure, Interruptions, Stopped
from trainer.events import Events
from trainer.spec import CHECKPOINTS, EPOCHS, Hyperparameters, Spec
from worker.masking import hide, masked, without_paths

# Seconds of work that the end of a process costs at most, beside an evaluation.
CHECKPOINT_S = 60.0
_LOSSES = ("loss", "eval_loss")
_PACKAGE, _KEY = "wandb", "WANDB_API_KEY"
# Characters of why nothing is reported.
LONGEST = 300


class MetricsCallback(TrainerCallback):
    """Writes the metrics that the Trainer logs.

    Raises:
        Failure: a loss is not finite.
    """

    def __init__(self, events: Events) -> None:
        self._events = events

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        logs = logs or {}
        self._events.write_metrics(logs, state.global_step)
        if not all(math.isfinite(logs.get(name, 0.0)) for name in _LOSSES):
            raise Failure(
                f"after {state.global_step} steps the loss is no number any more: the learning "
                f"rate, {args.learning_rate:g}, is too high; try {args.learning_rate / 10:g}"
            )


@dataclass(eq=False)
class CheckpointCallback(TrainerCallback):
    """Saves checkpoints and the adapters of epochs, and stops the training when asked to.

    Args:
        attempt: the directory of this attempt.
        base: the name of the base model.
        steps: of an epoch.
        events: which are written, and made durable before a checkpoint.
        interruptions: ask for the end.
        every_s: seconds between two checkpoints within an epoch.
    """

    attempt: Path
    base: str
    steps: int
    events: Events
    interruptions: Interruptions
    every_s: float = CHECKPOINT_S

    def __post_init__(self) -> None:
        self._saved = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        due = time.monotonic() - self._saved >= self.every_s
        # After an epoch's last step the evaluation comes first: an attempt that resumes there goes
        # on with the next epoch.
        if (due or self.interruptions.asked) and state.global_step % self.steps:
            _save(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        _save(control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        # An evaluation takes long where there are many rows; it can't be resumed.
        if self.interruptions.asked:
            raise Stopped

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        step = state.global_step
        written = Path(str(args.output_dir)) / f"checkpoint-{step}"
        epoch, within = divmod(step, self.steps)
        if not within:
            place = self.attempt / EPOCHS / str(step)
            checkpoints.copy_adapter(written, place, self.base)
            self.events.write(f"Epoch {epoch} saved", step)
        self.events.sync()
        checkpoints.publish(written, self.attempt / CHECKPOINTS / written.name)
        checkpoints.prune(self.attempt)
        self._saved = time.monotonic()
        if self.interruptions.asked and step < state.max_steps:
            raise Stopped


def _save(control: TrainerControl) -> None:
    # The log's window ends with the checkpoint: an attempt that resumes begins a new one.
    control.should_log = control.should_save = True


def reporting(spec: Spec, run: str, events: Events) -> list[TrainerCallback]:
    """Begin the report of a training, if one is wanted; write a warning if there can be none.

    Args:
        spec: the training.
        run: an id of it, the same one for all attempts.
        events: for the warning.
    """
    if spec.wandb is None:
        return []
    if find_spec(_PACKAGE) is None:
        missing = f"the package {_PACKAGE} is not installed"
    elif not os.environ.get(_KEY, "").strip():
        missing = f"there is no {_KEY}"
    else:
        import wandb  # noqa: PLC0415 - it may be missing

        try:
            return [WandbCallback(spec, run)]
        except wandb.errors.Error as error:
            # It may quote the key, which this process has in its environment, or a file's path.
            hide([os.environ[_KEY]])
            missing = without_paths(masked(str(error)))[:LONGEST]
    events.write(f"Nothing is reported to Weights & Biases: {missing}", level="warn")
    return []


class WandbCallback(TrainerCallback):
    """Reports the metrics that the Trainer logs, never rows or names of files."""

    def __init__(self, spec: Spec, run: str) -> None:
        import wandb  # noqa: PLC0415 - it may be missing

        known = {"project", "name", "entity", "tags"}
        asked: Mapping[str, Any] = spec.wandb or {}
        self._run = wandb.init(
            **{name: value for name, value in asked.items() if name in known},
            id=run,
            resume="allow",
            config=spec.model_dump(mode="json", include=set(Hyperparameters.model_fields)),
        )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        self._run.log(logs or {}, step=state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        self._run.finish()
