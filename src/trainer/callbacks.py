"""Callbacks of a training, which write its metrics and checkpoints."""

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
from trainer.events import EventLog
from trainer.interruptions import SigtermWatcher, StoppedBySigterm, TrainingFailure
from worker.fine_tunes.spec import CHECKPOINTS_DIR, EPOCHS_DIR, Hyperparameters, Spec
from worker.masking import add_secrets, mask_secrets, remove_paths
from worker.volume.durable import publish_directory

# Seconds between two checkpoints within an epoch. A killed process loses about as much work.
CHECKPOINT_INTERVAL_S = 60.0
_LOSS_METRICS = ("loss", "eval_loss")
_WANDB_PACKAGE, _WANDB_KEY = "wandb", "WANDB_API_KEY"
# Maximum number of characters of an error of Weights & Biases in a warning.
MAX_REASON_CHARACTERS = 300


class MetricsCallback(TrainerCallback):
    """Writes the metrics that transformers' Trainer logs to the attempt's events.

    Raises:
        TrainingFailure: A loss in these metrics is not finite.
    """

    def __init__(self, events: EventLog) -> None:
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
        if not all(math.isfinite(logs.get(name, 0.0)) for name in _LOSS_METRICS):
            raise TrainingFailure(
                f"after {state.global_step} steps the loss is no longer a number: the learning "
                f"rate, {args.learning_rate:g}, is too high; try {args.learning_rate / 10:g}"
            )


@dataclass(eq=False)
class CheckpointCallback(TrainerCallback):
    """Saves checkpoints and the adapters of epochs, and stops the training after SIGTERM.

    Args:
        attempt: Directory of this attempt.
        base_name: Name of the base model.
        epoch_steps: Number of steps per epoch.
        events: Log of the attempt's events, which is made durable before each checkpoint.
        watcher: Watcher for SIGTERM.
        interval_s: Seconds between two checkpoints within an epoch.
    """

    attempt: Path
    base_name: str
    epoch_steps: int
    events: EventLog
    watcher: SigtermWatcher
    interval_s: float = CHECKPOINT_INTERVAL_S

    def __post_init__(self) -> None:
        self._saved_at = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        is_due = time.monotonic() - self._saved_at >= self.interval_s
        # An attempt that resumed from a checkpoint directly after an epoch's last step would skip
        # the evaluation. ``on_epoch_end`` requests a checkpoint that follows the evaluation.
        if (is_due or self.watcher.is_stop_requested) and state.global_step % self.epoch_steps:
            _request_save(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        _request_save(control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        # An evaluation may take too long to finish it after SIGTERM, and can't be resumed.
        if self.watcher.is_stop_requested:
            raise StoppedBySigterm

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        step = state.global_step
        checkpoint = Path(str(args.output_dir)) / f"checkpoint-{step}"
        epoch, steps_in_epoch = divmod(step, self.epoch_steps)
        if not steps_in_epoch:
            adapter = self.attempt / EPOCHS_DIR / str(step)
            checkpoints.copy_adapter(checkpoint, adapter, self.base_name)
            self.events.write(f"Epoch {epoch} saved", step)
        self.events.sync()
        publish_directory(checkpoint, self.attempt / CHECKPOINTS_DIR / checkpoint.name)
        checkpoints.prune_checkpoints(self.attempt)
        self._saved_at = time.monotonic()
        if self.watcher.is_stop_requested and step < state.max_steps:
            raise StoppedBySigterm


def _request_save(control: TrainerControl) -> None:
    # The Trainer logs the average loss since its last log, and a resumed attempt starts a new
    # average. Without a log at each checkpoint, the steps before it would be missing.
    control.should_log = control.should_save = True


def start_wandb_reporting(spec: Spec, run_id: str, events: EventLog) -> list[TrainerCallback]:
    """Start reporting to Weights & Biases if the spec configures it; return the callbacks for it.

    If this start fails, the list is empty, and the events get a warning. All attempts of a
    training pass the same run id, and so continue one run.
    """
    if spec.wandb is None:
        return []
    if find_spec(_WANDB_PACKAGE) is None:
        reason = f"the package {_WANDB_PACKAGE} is not installed"
    elif not os.environ.get(_WANDB_KEY, "").strip():
        reason = f"there is no {_WANDB_KEY}"
    else:
        import wandb  # noqa: PLC0415 - optional package

        try:
            return [WandbCallback(spec, run_id)]
        except wandb.errors.Error as error:
            # The message may contain the key or a file's path.
            add_secrets([os.environ[_WANDB_KEY]])
            reason = remove_paths(mask_secrets(str(error)))[:MAX_REASON_CHARACTERS]
    events.write(f"Nothing is reported to Weights & Biases: {reason}", level="warn")
    return []


class WandbCallback(TrainerCallback):
    """Reports hyperparameters and metrics to Weights & Biases, but neither rows nor file names."""

    def __init__(self, spec: Spec, run_id: str) -> None:
        import wandb  # noqa: PLC0415 - optional package

        allowed = {"project", "name", "entity", "tags"}
        arguments: Mapping[str, Any] = spec.wandb or {}
        self._run = wandb.init(
            **{name: value for name, value in arguments.items() if name in allowed},
            id=run_id,
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
