"""Trains an adapter with transformers' Trainer, and says which epoch's is the best."""

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

from trainer.batches import Fit, batch_size, budget, collate, fit, lacking
from trainer.callbacks import CHECKPOINT_S, CheckpointCallback, MetricsCallback, reporting
from trainer.checkpoints import newest
from trainer.endings import Failure, Interruptions
from trainer.events import Events
from trainer.loading import base_name, dtype, with_adapter
from trainer.spec import WRITING, Outcome, Spec
from trainer.texts import Row
from worker.process.estimates import ModelSizes

# Points of a curve.
_LOGS = 100


@dataclass
class Training:
    """A training in an attempt's directory.

    Args:
        spec: what is asked for.
        attempt: the directory.
        rows: to train on, and to evaluate on; the latter may be none.
        events: of the attempt.
        interruptions: ask for its end.
        checkpoint_s: seconds between two checkpoints within an epoch.
    """

    spec: Spec
    attempt: Path
    rows: tuple[Sequence[Row], Sequence[Row]]
    events: Events
    interruptions: Interruptions
    checkpoint_s: float = CHECKPOINT_S

    def __post_init__(self) -> None:
        self._rows, self._validation = self.rows
        self._batch_size = min(self.spec.batch_size or batch_size(len(self._rows)), len(self._rows))
        self._epoch_steps = math.ceil(len(self._rows) / self._batch_size)

    def run(self, base: Any) -> Outcome:
        """Train, from the attempt's newest checkpoint on if there is one.

        Args:
            base: the model, of which nothing changes.

        Returns:
            The outcome, in which only the number of tokens is missing.

        Raises:
            Failure: there will be no adapter.
            Stopped: it goes on in another attempt.
            OSError: the volume fails; RuntimeError too, as ``endings.volume_failure`` says.
        """
        # Of the fine-tune, whichever attempt this is.
        name = self.attempt.parent.parent.name
        self._reporting = reporting(self.spec, name, self.events)
        model = with_adapter(base, self.spec.lora, self.spec.seed)
        count, _ = model.get_nb_trainable_parameters()
        chosen = self._fit(model, count)
        self.events.write(
            f"Training for {self.spec.epochs} epochs of {self._epoch_steps} steps with "
            f"{self._batch_size} rows each, {chosen.rows} at once; "
            f"the adapter has {count:,} parameters"
        )
        while (state := self._try(model, chosen)) is None:
            smaller = chosen.smaller(self._batch_size)
            if smaller is None:
                raise Failure(
                    f"the memory does not suffice for a row of {self._longest()} tokens: "
                    "shorten the rows, lower the adapter's rank, or take a larger machine"
                )
            self.events.write(
                f"The memory does not suffice for {chosen.rows} rows at once: "
                f"going on with {smaller.rows}",
                level="warn",
            )
            chosen = smaller
            # Nothing of the failed step may be left, nor of the adapter without a checkpoint.
            model = with_adapter(model.unload(), self.spec.lora, self.spec.seed)
            gc.collect()
            if self.spec.device == "cuda":
                torch.cuda.empty_cache()
        return self._outcome(state)

    def _fit(self, model: PeftModel, trained: int) -> Fit:
        free = budget(self.spec.device, trained)
        sizes = ModelSizes.model_validate(model.config.get_text_config())
        chosen = fit(sizes, self._longest(), self._batch_size, free)
        if (last := newest(self.attempt)) is None:
            return chosen
        state = TrainerState.load_from_json(str(last.path / TRAINER_STATE_NAME))
        # The same as before, as far as it fits: the same rows get the same dropout.
        return Fit(min(chosen.rows, state.train_batch_size or chosen.rows), chosen.recompute)

    def _try(self, model: PeftModel, chosen: Fit) -> TrainerState | None:
        """Return None if the memory does not suffice."""
        checkpoints = CheckpointCallback(
            self.attempt,
            base_name(self.spec.model),
            self._epoch_steps,
            self.events,
            self.interruptions,
            self.checkpoint_s,
        )
        trainer = Trainer(
            model=model,
            args=self._arguments(chosen),
            data_collator=collate,
            # A sequence is enough, whatever their types say.
            train_dataset=cast(Any, self._rows),
            eval_dataset=cast(Any, self._validation),
            callbacks=[MetricsCallback(self.events), checkpoints, *self._reporting],
        )
        # It prints.
        trainer.remove_callback(PrinterCallback)
        last = newest(self.attempt)
        try:
            trainer.train(resume_from_checkpoint=str(last.path) if last else None)
        except (RuntimeError, MemoryError) as error:
            if not lacking(error):
                raise
            return None
        return trainer.state

    def _arguments(self, chosen: Fit) -> TrainingArguments:
        spec, steps = self.spec, self._epoch_steps * self.spec.epochs
        kind = dtype(spec.device)
        arguments = TrainingArguments(
            output_dir=str(self.attempt / WRITING),
            num_train_epochs=spec.epochs,
            per_device_train_batch_size=chosen.rows,
            per_device_eval_batch_size=chosen.rows,
            gradient_accumulation_steps=self._batch_size // chosen.rows,
            gradient_checkpointing=chosen.recompute,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            learning_rate=spec.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=math.ceil(spec.warmup_ratio * steps),
            weight_decay=spec.weight_decay,
            max_grad_norm=1.0,
            seed=spec.seed,
            data_seed=spec.seed,
            use_cpu=spec.device == "cpu",
            bf16=kind == torch.bfloat16,
            fp16=kind == torch.float16,
            logging_steps=max(1, steps // _LOGS),
            # A loss that is not finite has to be seen.
            logging_nan_inf_filter=False,
            eval_strategy="epoch" if len(self._validation) else "no",
            # Saving says when.
            save_strategy="no",
            prediction_loss_only=True,
            label_names=["labels"],
            remove_unused_columns=False,
            dataloader_pin_memory=spec.device == "cuda",
            disable_tqdm=True,
            report_to="none",
        )
        # Or each GPU would get a part of the rows, and a copy of the model for each step.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        return arguments

    def _longest(self) -> int:
        return max(len(row) for rows in (self._rows, self._validation) for row in rows)

    def _outcome(self, state: TrainerState) -> Outcome:
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
