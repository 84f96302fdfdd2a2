"""A training is transformers' Trainer with PEFT, to the number; it can be cut into attempts."""

import itertools
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from support.trainers.real import Attempts, events_of, noise, spec, tiny_model, token_rows
from transformers import LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from trainer.checkpoints import WEIGHTS
from trainer.endings import Failure, Interruptions, Stopped
from trainer.spec import EPOCHS, Lora
from trainer.texts import Row

ROWS, VALIDATION = token_rows(22, seed=1), token_rows(5, seed=2)
STEPS = 6 * 2


def collated(rows: list[Row]) -> dict[str, torch.Tensor]:
    """Pad rows, in another way than the product does."""
    pad = torch.nn.utils.rnn.pad_sequence
    ids = [torch.tensor(row["id"].tolist()) for row in rows]
    labels = [
        each.masked_fill(~torch.tensor(row["learned"].tolist()), -100)
        for each, row in zip(ids, rows, strict=True)
    ]
    return {
        "input_ids": pad(ids, batch_first=True, padding_value=7),
        "attention_mask": pad([torch.ones_like(each) for each in ids], batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=-100),
    }


def plain(directory: Path) -> dict[int, dict[str, float]]:
    """Train with nothing but the libraries; return the logs by their steps."""
    base = tiny_model()
    set_seed(42)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    lora = LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=8, lora_dropout=0.1, target_modules=targets
    )
    trainer = Trainer(
        model=get_peft_model(base, lora),
        args=TrainingArguments(
            output_dir=str(directory),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            learning_rate=1e-2,
            lr_scheduler_type="cosine",
            warmup_steps=0.03,
            weight_decay=1e-3,
            max_grad_norm=1.0,
            seed=42,
            logging_steps=1,
            eval_strategy="epoch",
            save_strategy="no",
            remove_unused_columns=False,
            label_names=["labels"],
            dataloader_pin_memory=False,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
        ),
        data_collator=collated,
        train_dataset=cast(Any, ROWS),
        eval_dataset=cast(Any, VALIDATION),
    )
    trainer.train()
    logs: dict[int, dict[str, float]] = {}
    for log in trainer.state.log_history:
        logs.setdefault(int(log["step"]), {}).update(log)
    return logs


def numbers(logs: dict[int, dict[str, float]]) -> dict[tuple[int, str], float]:
    names = ("loss", "grad_norm", "learning_rate", "eval_loss")
    return {(step, name): log[name] for step, log in logs.items() for name in names if name in log}


def adapter(attempts: Attempts, name: str, step: int = STEPS) -> dict[str, torch.Tensor]:
    return load_file(attempts.directory / name / EPOCHS / str(step) / WEIGHTS)


def test_it_is_the_plain_trainer_to_the_number(tmp_path: Path) -> None:
    expected = numbers(plain(tmp_path / "plain"))
    attempts = Attempts(tmp_path / "ours", ROWS, VALIDATION)
    trained = attempts.run("1", spec(tmp_path))
    found = numbers(attempts.logs("1"))
    assert (len(expected), trained.steps) == (3 * STEPS + 2, STEPS)
    assert found == pytest.approx(expected, abs=1e-5)
    assert found[STEPS, "loss"] < found[1, "loss"] - 0.1


@pytest.mark.slow
def test_fewer_rows_at_once_are_the_same_training(tmp_path: Path) -> None:
    wanted = spec(tmp_path, lora=Lora(r=4, lora_dropout=0))
    whole = Attempts(tmp_path / "whole", ROWS)
    whole.run("1", wanted)
    split = Attempts(tmp_path / "split", ROWS)
    split.run("1", wanted, base=narrow())
    expected, found = numbers(whole.logs("1")), numbers(split.logs("1"))
    assert found == pytest.approx(expected, abs=1e-4)
    told = [event["message"] for event in events_of(split.directory / "1")]
    assert "The memory does not suffice for 4 rows at once: going on with 2" in told
    assert "The memory does not suffice for 2 rows at once: going on with 1" in told


def narrow() -> LlamaForCausalLM:
    """Return a model that fits two rows into its memory a few times, and then only one."""
    model, calls = tiny_model(), itertools.count(1)

    def check(module: torch.nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        rows = len(inputs["input_ids"])
        if rows > 2 or (rows == 2 and next(calls) > 6):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model.register_forward_pre_hook(check, with_kwargs=True)
    return model


@pytest.mark.slow
def test_what_is_computed_again_to_save_memory_is_the_same(tmp_path: Path) -> None:
    whole, again = (Attempts(tmp_path / name, ROWS) for name in ("whole", "again"))
    wanted = spec(tmp_path, batch_size=1)
    whole.run("1", wanted)
    model = tiny_model()

    def check(module: torch.nn.Module, args: Any) -> None:
        if not module.is_gradient_checkpointing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model.register_forward_pre_hook(check)
    again.run("1", wanted, base=model)
    assert numbers(again.logs("1")) == pytest.approx(numbers(whole.logs("1")), abs=1e-6)


def test_a_row_that_does_not_fit_is_a_failure_that_says_what_to_change(tmp_path: Path) -> None:
    longest = max(len(row) for row in ROWS)
    model = tiny_model()
    # As torch says it on a CPU.
    model.register_forward_pre_hook(lambda *_: torch.empty(1 << 60))
    with pytest.raises(Failure, match=f"a row of {longest} tokens: shorten the rows"):
        Attempts(tmp_path, ROWS).run("1", spec(tmp_path), base=model)


def asking(steps: int, *, training: bool = True) -> tuple[LlamaForCausalLM, Interruptions]:
    """Return a model, and what it asks for the end in so many steps, or batches of evaluations."""
    model, interruptions, calls = tiny_model(), Interruptions(), itertools.count(1)

    def ask(module: torch.nn.Module, args: Any) -> None:
        if module.training is training and next(calls) == steps:
            interruptions.asked = True

    model.register_forward_pre_hook(ask)
    return model, interruptions


@pytest.mark.parametrize("steps", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_training_that_stops_goes_on_as_if_it_had_not(tmp_path: Path, steps: int) -> None:
    wanted = spec(tmp_path)
    undisturbed = Attempts(tmp_path / "undisturbed", ROWS, VALIDATION)
    whole = undisturbed.run("1", wanted)
    attempts = Attempts(tmp_path / "stopped", ROWS, VALIDATION)
    with pytest.raises(Stopped):
        attempts.run("1", wanted, *asking(steps))
    assert attempts.run("2", wanted) == whole
    assert numbers(attempts.logs("2", "1")) == numbers(undisturbed.logs("1"))
    expected = adapter(undisturbed, "1")
    assert all(torch.equal(each, expected[name]) for name, each in adapter(attempts, "2").items())
    assert set(attempts.logs("1")) == set(range(1, steps + 1))
    assert set(attempts.logs("2")) == set(range(steps + 1, STEPS + 1))


@pytest.mark.slow
def test_one_that_stops_while_it_evaluates_goes_on_from_before(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, ROWS, VALIDATION)
    with pytest.raises(Stopped):
        attempts.run("1", spec(tmp_path), *asking(1, training=False), checkpoint_s=0)
    attempts.run("2", spec(tmp_path))
    assert set(attempts.logs("2")) == set(range(STEPS // 2, STEPS + 1))


@pytest.mark.slow
def test_the_epoch_with_the_least_loss_on_the_rows_held_out_is_the_best(tmp_path: Path) -> None:
    # Rows that are learned by heart make any others less likely.
    wanted = spec(tmp_path, epochs=6, learning_rate=3e-2, lora=Lora(r=16, lora_dropout=0))
    attempts = Attempts(tmp_path, noise(16, 1), noise(16, 2))
    trained = attempts.run("1", wanted)
    losses = {
        step: value
        for (step, name), value in numbers(attempts.logs("1")).items()
        if name == "eval_loss"
    }
    assert len(losses) == 6
    assert trained.best_loss == min(losses.values()) == losses[trained.best_step]
    assert losses[trained.steps] > trained.best_loss + 0.1


def test_the_last_step_is_not_stopped_and_no_finished_training(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, ROWS)
    trained = attempts.run("1", spec(tmp_path), *asking(STEPS))
    # Without rows held out the last epoch is the best.
    assert (trained.steps, trained.best_step, trained.best_loss) == (STEPS, STEPS, None)
    assert attempts.run("2", spec(tmp_path)) == trained
    assert numbers(attempts.logs("2")) == {}


def test_a_loss_that_is_no_number_ends_it_with_what_to_change(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, ROWS, VALIDATION)
    model = tiny_model()
    model.model.norm.weight.data.fill_(math.nan)
    with pytest.raises(Failure, match=r"learning rate, 0.01, is too high; try 0.001"):
        attempts.run("1", spec(tmp_path), base=model)
    assert not list((attempts.directory / "1").glob("*/checkpoint-*"))


def test_a_step_has_no_more_rows_than_there_are(tmp_path: Path) -> None:
    trained = Attempts(tmp_path, ROWS[:3]).run("1", spec(tmp_path, batch_size=100))
    assert (trained.batch_size, trained.steps) == (3, 2)
