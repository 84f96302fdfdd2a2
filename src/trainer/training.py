"""Trains an adapter with transformers' Trainer, on as many rows at a time as fit into memory.

Saves checkpoints, and chooses the best epoch.
"""

import gc
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from peft import PeftModel
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME

from trainer.interruptions import SigtermWatcher, StoppedBySigterm, TrainingFailure
from trainer.loading import add_adapter, is_out_of_memory, model_name, weights_dtype
from trainer.output import EventLog, copy_adapter, find_newest_checkpoint, prune_checkpoints
from trainer.tokens import TokenRow
from worker.fine_tunes.spec import (
    CHECKPOINTS_DIR,
    EPOCHS_DIR,
    SCRATCH_DIR,
    Hyperparameters,
    Outcome,
    Spec,
)
from worker.masking import add_secrets, mask_secrets, remove_paths
from worker.process.memory import MEMORY_SHARES, OPTIMIZER_BYTES, ModelSizes, free_memory_bytes
from worker.volume.durable import publish_directory

# Label of a token that is not learned: the loss ignores it.
IGNORED_LABEL = -100
# Default number of rows per step. Large files: this share of the rows, as in OpenAI's service, at
# most ``_MAX_BATCH``. Small files: at most ``_SMALL_FILE_BATCH``, and fewer if an epoch would have
# less than ``_MIN_EPOCH_STEPS`` steps.
_BATCH_SHARE = 0.002
_MIN_EPOCH_STEPS = 25
_SMALL_FILE_BATCH, _MAX_BATCH = 8, 64
# Seconds between two checkpoints within an epoch. A killed process loses about as much work.
CHECKPOINT_INTERVAL_S = 60.0
# Approximate number of points in a curve of metrics.
_LOG_POINTS = 100
_LOSS_METRICS = ("loss", "eval_loss")
_WANDB_PACKAGE, _WANDB_KEY = "wandb", "WANDB_API_KEY"
# Maximum number of characters of an error of Weights & Biases in a warning.
MAX_REASON_CHARACTERS = 300


def default_batch_size(rows: int) -> int:
    """Return the number of rows per step, a power of 2, for a training that doesn't set it."""
    small = min(_SMALL_FILE_BATCH, rows // _MIN_EPOCH_STEPS)
    size = min(_MAX_BATCH, max(small, int(rows * _BATCH_SHARE), 1))
    return 1 << (size.bit_length() - 1)


def largest_divisor(number: int, limit: float) -> int:
    """Return the largest divisor of a number that is not above the limit; at least 1."""
    return max((n for n in range(1, number + 1) if number % n == 0 and n <= limit), default=1)


def collate(rows: Sequence[TokenRow]) -> dict[str, torch.Tensor]:
    """Return the rows as tensors, padded to the length of the longest row."""
    shape = len(rows), max(map(len, rows))
    # Any padding token will do: the mask hides it, and it is not learned.
    ids = np.zeros(shape, np.int64)
    mask = np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORED_LABEL, np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row["id"]
        mask[number, : len(row)] = 1
        labels[number, : len(row)] = np.where(row["learned"], row["id"], IGNORED_LABEL)
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(labels),
    }


@dataclass(frozen=True)
class StepPlan:
    """How a step is computed."""

    rows: int  # per forward pass, a divisor of the rows per step
    recompute: bool = False  # the backward pass computes activations again, to save memory

    def smaller_plan(self, batch_size: int) -> "StepPlan | None":
        """Return the next plan that needs less memory; None if this is the smallest."""
        if self.rows > 1:
            return StepPlan(largest_divisor(batch_size, self.rows / 2), self.recompute)
        return None if self.recompute else StepPlan(1, recompute=True)


def choose_step_plan(sizes: ModelSizes, longest: int, batch_size: int, free: float) -> StepPlan:
    """Return the fastest plan that fits into memory by an estimate, or the smallest if none fits.

    ``longest`` are the tokens of the longest row, and ``free`` the bytes for rows.
    """
    for recompute in (False, True):
        rows = free / (longest * sizes.token_bytes(recompute=recompute))
        if rows >= 1:
            return StepPlan(largest_divisor(batch_size, rows), recompute)
    # The smallest plan may still work: the sizes are estimates.
    return StepPlan(1, recompute=True)


def free_bytes_for_rows(device: str, trained_parameters: int) -> float:
    """Return the bytes that rows may use: a share of the free memory, minus the optimiser's needs.

    The optimiser needs space for a gradient and two averages per trained parameter.
    """
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else free_memory_bytes()
    return free * MEMORY_SHARES[device] - OPTIMIZER_BYTES * trained_parameters


@dataclass
class Training:
    """A training in an attempt's directory."""

    spec: Spec
    attempt: Path
    # Rows to train on, and rows to evaluate on, which may be empty.
    rows: tuple[Sequence[TokenRow], Sequence[TokenRow]]
    events: EventLog
    watcher: SigtermWatcher
    checkpoint_interval_s: float = CHECKPOINT_INTERVAL_S  # within an epoch

    def __post_init__(self) -> None:
        self._rows, self._validation_rows = self.rows
        count = len(self._rows)
        self._batch_size = min(self.spec.batch_size or default_batch_size(count), count)
        self._epoch_steps = math.ceil(count / self._batch_size)

    def run(self, base: Any) -> Outcome:
        """Train an adapter for a base model, and return the outcome without what concerns the rows.

        Resumes from the attempt's newest checkpoint, if any. If memory runs out, the training
        continues with fewer rows per forward pass.

        Raises:
            TrainingFailure: The training can't succeed.
            StoppedBySigterm: Another attempt may resume.
            OSError, RuntimeError: The volume fails (see ``describe_volume_failure``).
        """
        # The fine-tune's id, which all of its attempts share.
        name = self.attempt.parent.parent.name
        self._reporting = start_wandb_reporting(self.spec, name, self.events)
        model = add_adapter(base, self.spec.lora, self.spec.seed)
        count, _ = model.get_nb_trainable_parameters()
        longest = max(len(row) for rows in self.rows for row in rows)
        sizes = ModelSizes.model_validate(model.config.get_text_config())
        free = free_bytes_for_rows(self.spec.device, count)
        plan = choose_step_plan(sizes, longest, self._batch_size, free)
        if last := find_newest_checkpoint(self.attempt):
            # At most as many rows per forward pass as before the interruption: with as many rows,
            # the dropout is the same as without the interruption.
            before = TrainerState.load_from_json(str(last.path / TRAINER_STATE_NAME))
            rows = min(plan.rows, before.train_batch_size or plan.rows)
            plan = StepPlan(rows, plan.recompute)
        self.events.write(
            f"Training for {self.spec.epochs} epochs of {self._epoch_steps} steps with "
            f"{self._batch_size} rows each, {plan.rows} at a time; "
            f"the adapter has {count:,} parameters"
        )
        while (state := self._run_trainer(model, plan)) is None:
            smaller = plan.smaller_plan(self._batch_size)
            if smaller is None:
                raise TrainingFailure(
                    f"there is not enough memory for a row of {longest} tokens: "
                    "shorten the rows, lower the adapter's rank, or use a larger machine"
                )
            self.events.write(
                f"There is not enough memory for {plan.rows} rows at a time: "
                f"continuing with {smaller.rows}",
                level="warn",
            )
            plan = smaller
            # The Trainer continues from the newest checkpoint or starts again: free the memory of
            # the failed step, and drop the weights that were trained after that checkpoint.
            model = add_adapter(model.unload(), self.spec.lora, self.spec.seed)
            gc.collect()
            if self.spec.device == "cuda":
                torch.cuda.empty_cache()
        losses = {
            int(log["step"]): log["eval_loss"] for log in state.log_history if "eval_loss" in log
        }
        best = min(losses, key=losses.__getitem__, default=state.global_step)
        return Outcome(
            is_over=True,
            steps=state.global_step,
            best_step=best,
            best_loss=losses.get(best),
            batch_size=self._batch_size,
        )

    def _run_trainer(self, model: PeftModel, plan: StepPlan) -> TrainerState | None:
        """Run transformers' Trainer and return its final state; None if memory runs out."""
        spec, steps = self.spec, self._epoch_steps * self.spec.epochs
        weights_type = weights_dtype(spec.device)
        arguments = TrainingArguments(
            output_dir=str(self.attempt / SCRATCH_DIR),
            num_train_epochs=spec.epochs,
            per_device_train_batch_size=plan.rows,
            per_device_eval_batch_size=plan.rows,
            gradient_accumulation_steps=self._batch_size // plan.rows,
            gradient_checkpointing=plan.recompute,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            learning_rate=spec.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=math.ceil(spec.warmup_ratio * steps),
            weight_decay=spec.weight_decay,
            max_grad_norm=1.0,
            seed=spec.seed,
            data_seed=spec.seed,
            use_cpu=spec.device == "cpu",
            bf16=weights_type == torch.bfloat16,
            fp16=weights_type == torch.float16,
            logging_steps=max(1, steps // _LOG_POINTS),
            # Log losses that are not finite, too: MetricsCallback has to detect them.
            logging_nan_inf_filter=False,
            eval_strategy="epoch" if len(self._validation_rows) else "no",
            # CheckpointCallback decides when to save.
            save_strategy="no",
            prediction_loss_only=True,
            label_names=["labels"],
            remove_unused_columns=False,
            dataloader_pin_memory=spec.device == "cuda",
            disable_tqdm=True,
            report_to="none",
        )
        # Otherwise each GPU would get a part of the rows and a copy of the model for each step.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        saving = CheckpointCallback(
            self.attempt,
            model_name(spec.model),
            self._epoch_steps,
            self.events,
            self.watcher,
            self.checkpoint_interval_s,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            data_collator=collate,
            # The Trainer accepts sequences although its type hints don't.
            train_dataset=cast(Any, self._rows),
            eval_dataset=cast(Any, self._validation_rows),
            callbacks=[MetricsCallback(self.events), saving, *self._reporting],
        )
        # PrinterCallback prints the metrics to standard output.
        trainer.remove_callback(PrinterCallback)
        last = find_newest_checkpoint(self.attempt)
        try:
            trainer.train(resume_from_checkpoint=str(last.path) if last else None)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None
        return trainer.state


class MetricsCallback(TrainerCallback):
    """Writes the metrics that transformers' Trainer logs to the attempt's events.

    A loss that is not finite raises ``TrainingFailure``.
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
    """Saves checkpoints and the adapters of epochs, and stops the training after SIGTERM."""

    attempt: Path
    base_name: str
    epoch_steps: int
    events: EventLog  # made durable before each checkpoint
    watcher: SigtermWatcher
    interval_s: float  # between two checkpoints within an epoch

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
            copy_adapter(checkpoint, adapter, self.base_name)
            self.events.write(f"Epoch {epoch} saved", step)
        self.events.sync()
        publish_directory(checkpoint, self.attempt / CHECKPOINTS_DIR / checkpoint.name)
        prune_checkpoints(self.attempt)
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
