"""Rows are computed together as far as the memory is estimated to suffice."""

import pytest
import torch
from support.trainer import tiny_model, token_rows

from worker.trainer.batches import collate
from worker.trainer.loading import with_adapter
from worker.trainer.memory import Fit, Sizes, budget, fit
from worker.trainer.spec import Lora

SIZES = Sizes(layers=10, hidden=100, inner=400, words=1000)
TOKEN = SIZES.token_bytes(recompute=False)
RECOMPUTED = SIZES.token_bytes(recompute=True)


@pytest.mark.parametrize(
    ("free", "chosen"),
    [
        (TOKEN * 50 * 100, Fit(8)),
        (TOKEN * 50 * 8, Fit(8)),
        (TOKEN * 50 * 7.9, Fit(4)),
        (TOKEN * 50, Fit(1)),
        (TOKEN * 50 - 1, Fit(4, recompute=True)),
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
    tokens = len(rows) * max(len(row.ids) for row in rows)
    estimate = Sizes.of(model.config).token_bytes(recompute=recompute) * tokens
    assert least * estimate < sum(kept.values()) < estimate


def test_what_gradients_take_is_not_left_for_rows() -> None:
    numbers = 10**15
    assert budget("cpu", numbers) < -11 * numbers
