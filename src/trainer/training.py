"""Trains an adapter with transformers' Trainer and chooses the best epoch."""

import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from transformers import PrinterCallback, Trainer, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from trainer.batches import (
    StepPlan,
    choose_step_plan,
    collate,
    default_batch_size,
    free_bytes_for_rows,
    is_out_of_memory,
)
from trainer.callbacks import (
    CHECKPOINT_INTERVAL_S,
    CheckpointCallback,
    MetricsCallback,
    start_wandb_reporting,
)
from trainer.checkpoints import find_newest_checkpoint
from trainer.events import EventLog
from trainer.interruptions import SigtermWatcher, TrainingFailure
from trainer.loading import add_adapter, model_name, weights_dtype
from trainer.texts import TokenRow
from worker.fine_tunes.spec import SCRATCH_DIR, Outcome, Spec
from worker.process.estimates import ModelSizes

# Approximate number of points in a curve of metrics.
_LOG_POINTS = 100


@dataclass
class Training:
    """A training in an attempt's directory.

    Args:
        spec: The spec of the training.
        attempt: Directory of the attempt.
        rows: Rows to train on and rows to evaluate on; the latter may be empty.
        events: Log of the attempt's events.
        watcher: Watcher for SIGTERM.
        checkpoint_interval_s: Seconds between two checkpoints within an epoch.
    """

    spec: Spec
    attempt: Path
    rows: tuple[Sequence[TokenRow], Sequence[TokenRow]]
    events: EventLog
    watcher: SigtermWatcher
    checkpoint_interval_s: float = CHECKPOINT_INTERVAL_S

    def __post_init__(self) -> None:
        self._rows, self._validation_rows = self.rows
        count = len(self._rows)
        self._batch_size = min(self.spec.batch_size or default_batch_size(count), count)
        self._epoch_steps = math.ceil(count / self._batch_size)

    def run(self, base: Any) -> Outcome:
        """Train an adapter for a base model, and return the outcome without the number of tokens.

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
        plan = self._choose_step_plan(model, count)
        self.events.write(
            f"Training for {self.spec.epochs} epochs of {self._epoch_steps} steps with "
            f"{self._batch_size} rows each, {plan.rows} at a time; "
            f"the adapter has {count:,} parameters"
        )
        while (state := self._run_trainer(model, plan)) is None:
            smaller = plan.smaller_plan(self._batch_size)
            if smaller is None:
                raise TrainingFailure(
                    f"there is not enough memory for a row of {self._max_row_length()} tokens: "
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
        return self._make_outcome(state)

    def _choose_step_plan(self, model: PeftModel, trained_parameters: int) -> StepPlan:
        free = free_bytes_for_rows(self.spec.device, trained_parameters)
        sizes = ModelSizes.model_validate(model.config.get_text_config())
        plan = choose_step_plan(sizes, self._max_row_length(), self._batch_size, free)
        if (last := find_newest_checkpoint(self.attempt)) is None:
            return plan
        state = TrainerState.load_from_json(str(last.path / TRAINER_STATE_NAME))
        # At most as many rows per forward pass as before the interruption: with as many rows, the
        # dropout is the same as without the interruption.
        return StepPlan(min(plan.rows, state.train_batch_size or plan.rows), plan.recompute)

    def _run_trainer(self, model: PeftModel, plan: StepPlan) -> TrainerState | None:
        """Run transformers' Trainer and return its final state; None if memory runs out."""
        checkpoints = CheckpointCallback(
            self.attempt,
            model_name(self.spec.model),
            self._epoch_steps,
            self.events,
            self.watcher,
            self.checkpoint_interval_s,
        )
        trainer = Trainer(
            model=model,
            args=self._make_trainer_arguments(plan),
            data_collator=collate,
            # The Trainer accepts sequences although its type hints don't.
            train_dataset=cast(Any, self._rows),
            eval_dataset=cast(Any, self._validation_rows),
            callbacks=[MetricsCallback(self.events), checkpoints, *self._reporting],
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

    def _make_trainer_arguments(self, plan: StepPlan) -> TrainingArguments:
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
        return arguments

    def _max_row_length(self) -> int:
        return max(len(row) for rows in (self._rows, self._validation_rows) for row in rows)

    def _make_outcome(self, state: TrainerState) -> Outcome:
        losses = {
            int(log["step"]): log["eval_loss"] for log in state.log_history if "eval_loss" in log
        }
        best = min(losses, key=losses.__getitem__, default=state.global_step)
        return Outcome(
            steps=state.global_step,
            best_step=best,
            best_loss=losses.get(best),
            batch_size=self._batch_size,
        )
