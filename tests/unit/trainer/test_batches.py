"""Rows as tokens: their files, the batch size, and the rows that fit into memory together."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from support.trainers.real import tiny_model, token_rows

from trainer.batches import (
    StepPlan,
    choose_step_plan,
    collate,
    default_batch_size,
    free_bytes_for_rows,
    largest_divisor,
)
from trainer.loading import add_adapter
from trainer.tokens import TOKEN_DTYPE, TokenRows, TokenWriter
from worker.fine_tunes.spec import Lora
from worker.process.memory import ModelSizes


def test_selected_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [[1, 2, 3], [4], [5, 6]]
    with closing(TokenWriter(tmp_path / "tokens")) as writer:
        for ids in rows:
            writer.add_row(np.array([(token, token % 2 == 0) for token in ids], TOKEN_DTYPE))
    for name, chosen in (("all", [0, 1, 2]), ("some", [2, 0])):
        lengths = writer.save_selection(name, chosen)
        assert lengths.tolist() == [len(rows[number]) for number in chosen]
        found = TokenRows(tmp_path / "tokens", name)
        assert [row["id"].tolist() for row in found] == [rows[number] for number in chosen]
    found = TokenRows(tmp_path / "tokens", "all")
    assert [row["learned"].tolist() for row in found] == [
        [False, True, False],
        [True],
        [False, True],
    ]
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize(
    ("rows", "size"),
    [(1, 1), (24, 1), (50, 2), (180, 4), (200, 8), (4000, 8), (8000, 16), (99_999, 64)],
)
def test_the_batch_size_grows_with_the_number_of_rows(rows: int, size: int) -> None:
    assert default_batch_size(rows) == size


@pytest.mark.parametrize(
    ("number", "limit", "divisor"), [(8, 8, 8), (8, 7.9, 4), (7, 6, 1), (12, 5, 4), (4, 0.5, 1)]
)
def test_the_divisor_is_the_largest_within_the_limit(
    number: int, limit: float, divisor: int
) -> None:
    assert largest_divisor(number, limit) == divisor


def test_rows_are_padded_to_the_longest_and_only_answers_are_learned() -> None:
    short = np.array([(5, False), (6, True)], TOKEN_DTYPE)
    long = np.array([(7, False), (8, True), (9, True)], TOKEN_DTYPE)
    batch = collate([short, long])
    assert batch["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[-100, 6, -100], [-100, 8, 9]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


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
