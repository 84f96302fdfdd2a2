"""What an engine is started with: steps of a start return new values."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from worker.engine.arguments import EngineArguments
from worker.engine.options.automatic import RENDERERS, with_renderer_workers
from worker.settings.environment import Default

DTYPE = Default("DTYPE", "float32", "no GPU")
ALL = Default("TENSOR_PARALLEL_SIZE", "4", "4 GPUs are there")
FITTING = Default("TENSOR_PARALLEL_SIZE", "2", "as many as fit")


def test_a_default_takes_the_place_of_an_earlier_one() -> None:
    options = Namespace(dtype="float32", tensor_parallel_size=4)
    before = EngineArguments(options, "org/model", defaults=(DTYPE, ALL))
    after = before.with_default(FITTING, 2)
    assert (after.defaults, after.vllm.tensor_parallel_size) == ((DTYPE, FITTING), 2)
    assert (before.defaults, before.vllm.tensor_parallel_size) == ((DTYPE, ALL), 4)


@pytest.mark.parametrize(
    ("changed", "given", "threads"),
    [
        ({}, (), 2),
        ({"runner_type": "pooling"}, (), 2),
        ({"multimodal_config": "some"}, (), 2),
        ({"runner_type": "pooling", "multimodal_config": "some"}, (), 1),
        ({"skip_tokenizer_init": True}, (), 1),
        ({}, (RENDERERS,), 1),
    ],
)
def test_one_of_two_threads_stays_free_of_long_texts(
    changed: dict[str, Any], given: tuple[str, ...], threads: int
) -> None:
    known = {"runner_type": "generate", "multimodal_config": None, "skip_tokenizer_init": False}
    config = SimpleNamespace(renderer_num_workers=1, **{**known, **changed})
    options = Namespace(renderer_num_workers=1)
    before = EngineArguments(options, "org/model", given=frozenset(given))
    after = with_renderer_workers(before, config)
    assert config.renderer_num_workers == after.vllm.renderer_num_workers == threads
    assert [default.name for default in after.defaults] == [RENDERERS] * (threads - 1)
