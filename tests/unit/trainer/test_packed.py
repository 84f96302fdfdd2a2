"""Rows as tokens in files."""

from pathlib import Path

import numpy as np
import pytest

from worker.trainer.packed import Packed, Writer

ROWS = ([1, 2, 3], [4], [5, 6])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Writer(tmp_path / "tokens") as writer:
        for ids in ROWS:
            writer.add(ids, np.asarray([token % 2 == 0 for token in ids]))
    writer.choose("all", range(3))
    writer.choose("some", [2, 0])
    return tmp_path / "tokens"


def test_rows_are_read_as_they_were_written(directory: Path) -> None:
    rows = Packed.named(directory, "all")
    assert [row.ids.tolist() for row in rows] == list(ROWS)
    assert [row.learned.tolist() for row in rows] == [[False, True, False], [True], [False, True]]
    assert rows.lengths.tolist() == [3, 1, 2]


def test_a_name_stands_for_chosen_rows_in_their_order(directory: Path) -> None:
    rows = Packed.named(directory, "some")
    assert [row.ids.tolist() for row in rows] == [[5, 6], [1, 2, 3]]
    assert rows.lengths.tolist() == [2, 3]


def test_a_slice_is_rows_again(directory: Path) -> None:
    rows = Packed.named(directory, "all")
    assert [row.ids.tolist() for row in rows[1:]] == [[4], [5, 6]]
    assert rows[-1].ids.tolist() == [5, 6]
    with pytest.raises(IndexError):
        rows[3]
