"""Rows as tokens: in files, in steps of a fitting size, and as many at once as the memory fits."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from support.trainers.real import tiny_model, token_rows

from trainer.batches import Fit, Packed, batch_size, budget, collate, fit, largest_divisor
from trainer.loading import with_adapter
from trainer.prepare import Writer
from trainer.spec import Lora
from trainer.texts import TOKEN
from worker.process.estimates import ModelSizes


def test_rows_are_read_as_they_were_written_and_chosen(tmp_path: Path) -> None:
    rows = [[1, 2, 3], [4], [5, 6]]
    with closing(Writer(tmp_path / "tokens")) as writer:
        for ids in rows:
            writer.add(np.array([(token, token % 2 == 0) for token in ids], TOKEN))
    for name, chosen in (("all", [0, 1, 2]), ("some", [2, 0])):
        lengths = writer.choose(name, chosen)
        assert lengths.tolist() == [len(rows[number]) for number in chosen]
        found = Packed(tmp_path / "tokens", name)
        assert [row["id"].tolist() for row in found] == [rows[number] for number in chosen]
    found = Packed(tmp_path / "tokens", "all")
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
def test_a_small_set_has_small_steps_and_a_large_one_large_steps(rows: int, size: int) -> None:
    assert batch_size(rows) == size


@pytest.mark.parametrize(
    ("number", "limit", "divisor"), [(8, 8, 8), (8, 7.9, 4), (7, 6, 1), (12, 5, 4), (4, 0.5, 1)]
)
def test_rows_at_once_divide_a_step(number: int, limit: float, divisor: int) -> None:
    assert largest_divisor(number, limit) == divisor


def test_rows_are_padded_to_the_longest_and_only_answers_are_learned() -> None:
    short = np.array([(5, False), (6, True)], TOKEN)
    long = np.array([(7, False), (8, True), (9, True)], TOKEN)
    batch = collate([short, long])
    assert batch["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[-100, 6, -100], [-100, 8, 9]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


SIZES = ModelSizes(num_hidden_layers=10, hidden_size=100, intermediate_size=400, vocab_size=1000)
TOKEN_BYTES = SIZES.token_bytes(recompute=False)
RECOMPUTED = SIZES.token_bytes(recompute=True)


@pytest.mark.parametrize(
    ("free", "chosen"),
    [
        (TOKEN_BYTES * 50 * 100, Fit(8)),
        (TOKEN_BYTES * 50 * 8, Fit(8)),
        (TOKEN_BYTES * 50 * 7.9, Fit(4)),
        (TOKEN_BYTES * 50, Fit(1)),
        (TOKEN_BYTES * 50 - 1, Fit(4, recompute=True)),
        (RECOMPUTED * 50, Fit(1, recompute=True)),
        (-1, Fit(1, recompute=True)),
    ],
)
def test_as_many_rows_as_fit_are_computed_at_once(free: float, chosen: Fit) -> None:
    assert fit(SIZES, longest=50, batch_size=8, free=free) == chosen


def test_less_memory_is_taken_step_by_step() -> None:
    steps, chosen = [], Fit(12).smaller(12)
    while chosen:
        steps.append(chosen)
        chosen = chosen.smaller(12)
    assert steps == [Fit(6), Fit(3), Fit(1), Fit(1, recompute=True)]


@pytest.mark.parametrize(("recompute", "least"), [(False, 0.7), (True, 0.05)])
def test_the_estimate_is_about_what_torch_keeps(recompute: bool, least: float) -> None:
    """Of what is recomputed, one layer and the logits' gradients come and go."""
    model = with_adapter(tiny_model(), Lora(r=2, lora_dropout=0.1), 0)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = token_rows(8)
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(**collate(rows))
    assert output.loss.requires_grad
    tokens = len(rows) * max(len(row) for row in rows)
    sizes = ModelSizes.model_validate(model.config.get_text_config())
    estimate = sizes.token_bytes(recompute=recompute) * tokens
    assert least * estimate < sum(kept.values()) < estimate


def test_what_gradients_take_is_not_left_for_rows() -> None:
    numbers = 10**15
    assert budget("cpu", numbers) < -11 * numbers
