"""What a second core does without, by the reason why the first one did not start."""

from argparse import Namespace
from types import SimpleNamespace

import pytest

from worker.engine.arguments import EngineArguments
from worker.engine.configuring import Configured
from worker.engine.fitting import SECOND_TRY, SEQUENCES, SHARE
from worker.engine.launch import OTHER_LOADER, second_try
from worker.engine.options.fast_loader import LOAD_FORMAT
from worker.settings.environment import Default

FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
OTHER = "RuntimeError: the file is no file of weights"
CONFIG = SimpleNamespace(
    device_config=SimpleNamespace(device_type="cuda"),
    scheduler_config=SimpleNamespace(max_num_seqs=256),
)


def engine(*, fast: bool, given: tuple[str, ...] = ()) -> Configured:
    options = Namespace(load_format="auto", gpu_memory_utilization=0.95, max_num_seqs=256)
    arguments = EngineArguments(options, "org/model", given=frozenset(given))
    if fast:
        chosen = Default(LOAD_FORMAT, "instanttensor", "it is the fastest")
        arguments = arguments.with_default(chosen, chosen.value)
    return Configured(arguments, CONFIG)


@pytest.mark.parametrize(
    ("one", "reason", "doing", "sequences"),
    [
        (engine(fast=False), FULL, SECOND_TRY, 64),
        (engine(fast=True), FULL, SECOND_TRY, 64),
        (engine(fast=True), OTHER, OTHER_LOADER, 256),
        # Nothing can be less: only the loader is another one.
        (engine(fast=True, given=(SHARE, SEQUENCES)), FULL, OTHER_LOADER, 256),
    ],
)
def test_a_second_try_does_without_what_it_says(
    one: Configured, reason: str, doing: str, sequences: int
) -> None:
    second = second_try(one, reason)
    assert second
    arguments, said = second
    assert said == doing
    assert arguments.vllm.load_format == "auto"
    assert arguments.vllm.max_num_seqs == sequences


@pytest.mark.parametrize(
    ("one", "reason"),
    [(engine(fast=False), OTHER), (engine(fast=False, given=(SHARE, SEQUENCES)), FULL)],
)
def test_there_is_no_second_try_that_would_be_the_same(one: Configured, reason: str) -> None:
    assert second_try(one, reason) is None
