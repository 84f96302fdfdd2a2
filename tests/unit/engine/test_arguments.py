"""What an engine is started with: steps of a start return new values."""

from argparse import Namespace

from worker.engine.arguments import EngineArguments
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
