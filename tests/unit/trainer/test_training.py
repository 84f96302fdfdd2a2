"""A training equals transformers' Trainer with PEFT, also if it is split into attempts."""

import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from support.trainers.real import Attempts, events_of, noise_rows, spec, tiny_model, token_rows
from transformers import LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from trainer.interruptions import SigtermWatcher, StoppedBySigterm, TrainingFailure
from trainer.loading import add_adapter
from trainer.output import EventLog
from trainer.tokens import TokenRow
from trainer.training import (
    StepPlan,
    choose_step_plan,
    collate,
    default_batch_size,
    free_bytes_for_rows,
    start_wandb_reporting,
)
from worker import masking
from worker.fine_tunes.spec import EPOCHS_DIR, EVENTS_FILE, Lora
from worker.process.memory import ModelSizes
from worker.volume.adapters import WEIGHTS

ROWS, VALIDATION = token_rows(22, seed=1), token_rows(5, seed=2)
STEPS = 6 * 2


def pad_rows(rows: list[TokenRow]) -> dict[str, torch.Tensor]:
    """Pad rows with other code than the product's."""
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


def train_with_libraries(directory: Path) -> dict[int, dict[str, float]]:
    """Train with only the libraries; return the logs by step."""
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
        data_collator=pad_rows,
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
    return load_file(attempts.directory / name / EPOCHS_DIR / str(step) / WEIGHTS)


@pytest.mark.slow
def test_a_training_has_the_numbers_of_the_libraries_trainer(tmp_path: Path) -> None:
    expected = numbers(train_with_libraries(tmp_path / "plain"))
    attempts = Attempts(tmp_path / "ours", ROWS, VALIDATION)
    trained = attempts.run("1", spec(tmp_path))
    found = numbers(attempts.metrics_by_step("1"))
    assert (len(expected), trained.steps) == (3 * STEPS + 2, STEPS)
    assert found == pytest.approx(expected, abs=1e-5)
    assert found[STEPS, "loss"] < found[1, "loss"] - 0.1


@pytest.mark.slow
def test_fewer_rows_at_a_time_give_the_same_training(tmp_path: Path) -> None:
    settings = spec(tmp_path, lora=Lora(r=4, lora_dropout=0))
    whole = Attempts(tmp_path / "whole", ROWS)
    whole.run("1", settings)
    split = Attempts(tmp_path / "split", ROWS)
    split.run("1", settings, base=create_narrow_model())
    expected, found = numbers(whole.metrics_by_step("1")), numbers(split.metrics_by_step("1"))
    assert found == pytest.approx(expected, abs=1e-4)
    messages = [event["message"] for event in events_of(split.directory / "1")]
    assert "There is not enough memory for 4 rows at a time: continuing with 2" in messages
    assert "There is not enough memory for 2 rows at a time: continuing with 1" in messages


def create_narrow_model() -> LlamaForCausalLM:
    """Return a model that fits two rows into memory a few times, and later only one row."""
    model, calls = tiny_model(), itertools.count(1)

    def check(module: torch.nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        rows = len(inputs["input_ids"])
        if rows > 2 or (rows == 2 and next(calls) > 6):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model.register_forward_pre_hook(check, with_kwargs=True)
    return model


@pytest.mark.slow
def test_recomputation_to_save_memory_gives_the_same_training(tmp_path: Path) -> None:
    whole, again = (Attempts(tmp_path / name, ROWS) for name in ("whole", "again"))
    settings = spec(tmp_path, batch_size=1)
    whole.run("1", settings)
    model = tiny_model()

    def check(module: torch.nn.Module, args: Any) -> None:
        if not module.is_gradient_checkpointing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model.register_forward_pre_hook(check)
    again.run("1", settings, base=model)
    assert numbers(again.metrics_by_step("1")) == pytest.approx(
        numbers(whole.metrics_by_step("1")), abs=1e-6
    )


@pytest.mark.slow
def test_a_row_that_does_not_fit_is_a_failure_with_advice(tmp_path: Path) -> None:
    longest = max(len(row) for row in ROWS)
    model = tiny_model()
    # Provoke torch's own error on a CPU.
    model.register_forward_pre_hook(lambda *_: torch.empty(1 << 60))
    with pytest.raises(TrainingFailure, match=f"a row of {longest} tokens: shorten the rows"):
        Attempts(tmp_path, ROWS).run("1", spec(tmp_path), base=model)


def create_stopping_model(
    steps: int, *, training: bool = True
) -> tuple[LlamaForCausalLM, SigtermWatcher]:
    """Return a model that requests a stop at a step or evaluation batch, and its watcher."""
    model, watcher, calls = tiny_model(), SigtermWatcher(), itertools.count(1)

    def request_stop(module: torch.nn.Module, args: Any) -> None:
        if module.training is training and next(calls) == steps:
            watcher.is_stop_requested = True

    model.register_forward_pre_hook(request_stop)
    return model, watcher


@pytest.mark.parametrize("steps", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_stopped_training_continues_with_the_same_numbers(tmp_path: Path, steps: int) -> None:
    settings = spec(tmp_path)
    undisturbed = Attempts(tmp_path / "undisturbed", ROWS, VALIDATION)
    whole = undisturbed.run("1", settings)
    attempts = Attempts(tmp_path / "stopped", ROWS, VALIDATION)
    with pytest.raises(StoppedBySigterm):
        attempts.run("1", settings, *create_stopping_model(steps))
    assert attempts.run("2", settings) == whole
    assert numbers(attempts.metrics_by_step("2", "1")) == numbers(undisturbed.metrics_by_step("1"))
    expected = adapter(undisturbed, "1")
    assert all(torch.equal(each, expected[name]) for name, each in adapter(attempts, "2").items())
    assert set(attempts.metrics_by_step("1")) == set(range(1, steps + 1))
    assert set(attempts.metrics_by_step("2")) == set(range(steps + 1, STEPS + 1))


@pytest.mark.slow
def test_a_training_that_stops_during_an_evaluation_continues_before_it(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, ROWS, VALIDATION)
    with pytest.raises(StoppedBySigterm):
        attempts.run("1", spec(tmp_path), *create_stopping_model(1, training=False), checkpoint_s=0)
    attempts.run("2", spec(tmp_path))
    assert set(attempts.metrics_by_step("2")) == set(range(STEPS // 2, STEPS + 1))


@pytest.mark.slow
def test_the_epoch_with_the_lowest_validation_loss_is_the_best(tmp_path: Path) -> None:
    # Learning these rows by heart makes all others less likely.
    settings = spec(tmp_path, epochs=6, learning_rate=3e-2, lora=Lora(r=16, lora_dropout=0))
    attempts = Attempts(tmp_path, noise_rows(16, 1), noise_rows(16, 2))
    trained = attempts.run("1", settings)
    losses = {
        step: value
        for (step, name), value in numbers(attempts.metrics_by_step("1")).items()
        if name == "eval_loss"
    }
    assert len(losses) == 6
    assert trained.best_loss == min(losses.values()) == losses[trained.best_step]
    assert losses[trained.steps] > trained.best_loss + 0.1


@pytest.mark.slow
def test_neither_the_last_step_nor_a_finished_training_is_stopped(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, ROWS)
    trained = attempts.run("1", spec(tmp_path), *create_stopping_model(STEPS))
    # Without rows for validation the last epoch is the best.
    assert (trained.steps, trained.best_step, trained.best_loss) == (STEPS, STEPS, None)
    assert attempts.run("2", spec(tmp_path)) == trained
    assert numbers(attempts.metrics_by_step("2")) == {}


def test_a_loss_that_is_not_a_number_is_a_failure_with_advice(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, ROWS, VALIDATION)
    model = tiny_model()
    model.model.norm.weight.data.fill_(math.nan)
    with pytest.raises(TrainingFailure, match=r"learning rate, 0.01, is too high; try 0.001"):
        attempts.run("1", spec(tmp_path), base=model)
    assert not list((attempts.directory / "1").glob("*/checkpoint-*"))


def test_a_step_has_no_more_rows_than_the_file(tmp_path: Path) -> None:
    trained = Attempts(tmp_path, ROWS[:3]).run("1", spec(tmp_path, batch_size=100))
    assert (trained.batch_size, trained.steps) == (3, 2)


# The rows of a step, and those that fit into memory together


@pytest.mark.parametrize(
    ("rows", "size"),
    [(1, 1), (24, 1), (50, 2), (180, 4), (200, 8), (4000, 8), (8000, 16), (99_999, 64)],
)
def test_the_batch_size_grows_with_the_number_of_rows(rows: int, size: int) -> None:
    assert default_batch_size(rows) == size


SIZES = ModelSizes(num_hidden_layers=10, hidden_size=100, intermediate_size=400, vocab_size=1000)
TOKEN_BYTES = SIZES.token_bytes(recompute=False)
RECOMPUTED_TOKEN_BYTES = SIZES.token_bytes(recompute=True)


@pytest.mark.parametrize(
    ("free", "chosen"),
    [
        (TOKEN_BYTES * 50 * 100, StepPlan(8)),
        (TOKEN_BYTES * 50 * 8, StepPlan(8)),
        (TOKEN_BYTES * 50 * 7.9, StepPlan(4)),
        (TOKEN_BYTES * 50, StepPlan(1)),
        (TOKEN_BYTES * 50 - 1, StepPlan(4, recompute=True)),
        (RECOMPUTED_TOKEN_BYTES * 50, StepPlan(1, recompute=True)),
        (-1, StepPlan(1, recompute=True)),
    ],
)
def test_as_many_rows_as_fit_are_computed_together(free: float, chosen: StepPlan) -> None:
    assert choose_step_plan(SIZES, longest=50, batch_size=8, free=free) == chosen


def test_the_next_smaller_plans_take_less_and_less_memory() -> None:
    steps, chosen = [], StepPlan(12).smaller_plan(12)
    while chosen:
        steps.append(chosen)
        chosen = chosen.smaller_plan(12)
    assert steps == [StepPlan(6), StepPlan(3), StepPlan(1), StepPlan(1, recompute=True)]


@pytest.mark.parametrize(("recompute", "min_share"), [(False, 0.7), (True, 0.05)])
def test_the_estimate_is_close_to_the_memory_that_torch_retains(
    recompute: bool, min_share: float
) -> None:
    """With recomputation, one layer and the gradients of the logits exist only temporarily."""
    model = add_adapter(tiny_model(), Lora(r=2, lora_dropout=0.1), 0)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    saved: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = token_rows(8)
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        output = model(**collate(rows))
    assert output.loss.requires_grad
    tokens = len(rows) * max(len(row) for row in rows)
    sizes = ModelSizes.model_validate(model.config.get_text_config())
    estimate = sizes.token_bytes(recompute=recompute) * tokens
    assert min_share * estimate < sum(saved.values()) < estimate


def test_memory_for_gradients_is_not_available_for_rows() -> None:
    numbers = 10**15
    assert free_bytes_for_rows("cpu", numbers) < -11 * numbers


# Reports to Weights & Biases

# The used part of the package wandb; it records its calls.
PACKAGE = """
import json, pathlib

def note(*calls):
    with (pathlib.Path(__file__).parent / "calls").open("a") as opened:
        opened.write(json.dumps(calls) + "\\n")

class errors:
    class Error(Exception):
        pass

class Run:
    def log(self, numbers, step):
        note("log", numbers, step)

    def finish(self):
        note("finish")

def init(**how):
    if how.get("project") == "refused":
        raise errors.Error("no such project")
    if how.get("project") == "quoted":
        raise errors.Error("the key 'secret-of-wandb' in /root/.netrc is none")
    note("init", how)
    return Run()
"""


@pytest.fixture
def wandb_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a wandb package for one test and set a key; return the file of recorded calls."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "wandb.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("WANDB_API_KEY", "secret-of-wandb")
    yield packages / "calls"
    sys.modules.pop("wandb", None)


def test_metrics_are_reported_to_weights_and_biases(tmp_path: Path, wandb_calls: Path) -> None:
    wandb = {"project": "p", "tags": ["t"], "api_key": "unknown"}
    attempts = Attempts(tmp_path / "ftjob-a", token_rows(8))
    attempts.run("1", spec(tmp_path, epochs=1, wandb=wandb))
    (first, options), *calls = [json.loads(line) for line in wandb_calls.read_text().splitlines()]
    config = options.pop("config")
    assert (first, config["learning_rate"], "model" in config) == ("init", 1e-2, False)
    assert options == {"project": "p", "tags": ["t"], "id": "ftjob-a", "resume": "allow"}
    assert [call[2] for call in calls if call[0] == "log" and "loss" in call[1]] == [1, 2]
    assert calls[-1] == ["finish"]


def warning(tmp_path: Path, project: str) -> str:
    """Return the logged reason why nothing is reported."""
    with EventLog(tmp_path / EVENTS_FILE, 0) as events:
        assert (
            start_wandb_reporting(spec(tmp_path, wandb={"project": project}), "ftjob-a", events)
            == []
        )
    *_, event = events_of(tmp_path)
    assert event["level"] == "warn"
    return str(event["message"]).removeprefix("Nothing is reported to Weights & Biases: ")


@pytest.mark.usefixtures("wandb_calls")
def test_the_reason_of_a_refusal_is_logged_without_keys_and_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    assert warning(tmp_path, "refused") == "no such project"
    assert warning(tmp_path, "quoted") == "the key '***' in ... is none"
    monkeypatch.delenv("WANDB_API_KEY")
    assert warning(tmp_path, "p") == "there is no WANDB_API_KEY"


def test_without_the_package_nothing_is_reported(tmp_path: Path) -> None:
    assert warning(tmp_path, "p") == "the package wandb is not installed"
