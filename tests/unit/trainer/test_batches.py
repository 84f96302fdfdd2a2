"""Rows become steps of a fitting size, and tensors that hide what fills them up."""

import numpy as np
import pytest
import torch
from support.trainer import TokenRow, tiny_model, token_rows

from worker.trainer.batches import batch_size, collate, largest_divisor


@pytest.mark.parametrize(
    ("rows", "size"),
    [(1, 1), (24, 1), (50, 2), (180, 4), (200, 8), (4000, 8), (8000, 16), (99_999, 64)],
)
def test_a_small_set_has_small_steps_and_a_large_one_large_steps(rows: int, size: int) -> None:
    assert batch_size(rows) == size


@pytest.mark.parametrize(
    ("number", "limit", "divisor"), [(8, 8, 8), (8, 7.9, 4), (7, 6, 1), (12, 5, 4), (4, 0.5, 1)]
)
def test_rows_at_once_divide_a_step(number: int, limit: float, divisor: int) -> None:
    assert largest_divisor(number, limit) == divisor


def test_rows_are_padded_to_the_longest_and_only_answers_are_learned() -> None:
    short = TokenRow(np.array([5, 6], np.int32), np.array([False, True]))
    long = TokenRow(np.array([7, 8, 9], np.int32), np.array([False, True, True]))
    batch = collate([short, long])
    assert batch["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[-100, 6, -100], [-100, 8, 9]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_what_fills_a_row_up_changes_no_answer() -> None:
    model = tiny_model()
    short, long = sorted(token_rows(20), key=lambda row: len(row.ids))[::19]
    alone = model(**collate([short])).logits[0]
    padded = model(**collate([short, long])).logits[0, : len(short.ids)]
    torch.testing.assert_close(padded, alone)


def test_the_prompts_tokens_carry_no_loss() -> None:
    model = tiny_model()
    row = token_rows(1)[0]
    batch = collate([row])
    output = model(**batch)
    output.logits.retain_grad()
    output.loss.backward()
    # The logits of a position are of the token that follows it.
    learned = [*row.learned[1:], False]
    with_gradient = output.logits.grad[0].abs().sum(-1) > 0
    assert with_gradient.tolist() == learned
