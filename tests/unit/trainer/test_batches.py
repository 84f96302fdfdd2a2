"""Rows as tokens: in files, in steps of a fitting size, and in tensors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.trainer import TokenRow

from worker.trainer.batches import batch_size, collate, largest_divisor
from worker.trainer.packed import Packed, Writer


def test_rows_are_read_as_they_were_written_and_chosen(tmp_path: Path) -> None:
    rows = [[1, 2, 3], [4], [5, 6]]
    with Writer(tmp_path / "tokens") as writer:
        for ids in rows:
            writer.add(ids, np.asarray([token % 2 == 0 for token in ids]))
    for name, chosen in (("all", [0, 1, 2]), ("some", [2, 0])):
        writer.choose(name, chosen)
        found = Packed.named(tmp_path / "tokens", name)
        assert [row.ids.tolist() for row in found] == [rows[number] for number in chosen]
        assert found.lengths.tolist() == [len(rows[number]) for number in chosen]
    found = Packed.named(tmp_path / "tokens", "all")
    assert [row.learned.tolist() for row in found] == [[False, True, False], [True], [False, True]]
    # A slice is rows again.
    assert [row.ids.tolist() for row in found[1:]] == rows[1:]
    assert found[-1].ids.tolist() == rows[-1]
    with pytest.raises(IndexError):
        found[3]


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
