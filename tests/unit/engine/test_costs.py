"""The costs of the part of a start that uses vLLM, and of tokens that wait for their chunk."""

import asyncio
from pathlib import Path

import psutil
import pytest
from support.costs import Cost, check_costs, count_cost
from support.releases import needs_pinned_vllm
from support.settings import machine_with_gpus
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from worker.chunking import ChunkPolicy, Schedule
from worker.engine.machine import Machine
from worker.engine.options import read_parser
from worker.engine.run.requests.due_outputs import DueOutputs, ReaderWaker
from worker.engine.start import Start
from worker.engine.start.configuring import configure_engine
from worker.settings.sources import gather_settings


def read(model: Path) -> Start:
    return Start.read(gather_settings({"MODEL_NAME": str(model), "MAX_MODEL_LEN": "512"}))


@needs_pinned_vllm
def test_the_options_of_a_start_cost_as_much_as_before(demo_model: Path) -> None:
    # What is imported on first use is imported now.
    read(demo_model).read_options(machine_with_gpus(1))
    start = read(demo_model)
    read_parser.cache_clear()
    with count_cost() as cost:
        start.read_options(machine_with_gpus(1))
    check_costs({"options of a start": cost})


@needs_pinned_vllm
def test_the_plan_of_an_engine_costs_as_much_as_before(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A step reads the mounts of the machine.
    mounts = tmp_path / "self" / "mounts"
    mounts.parent.mkdir()
    mounts.write_text("/dev/root / ext4 rw 0 0\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    start = read(demo_model)
    start.read_options(Machine(cpu=True))
    configure_engine(start.main_arguments, start)
    with count_cost() as cost:
        configure_engine(start.main_arguments, start)
    check_costs({"plan of an engine": cost})


def output(*, finished: bool) -> RequestOutput:
    choice = CompletionOutput(0, "a", [1], None, None, "stop" if finished else None)
    return RequestOutput("id", None, None, None, [choice], finished=finished)


async def stream(chunks: int, size: int) -> Cost:
    """Put tokens into the queue of a stream, and read each of its chunks."""
    policy = ChunkPolicy(largest=size, smallest=size, growth=1, max_delay=0.1)
    queue = DueOutputs(RequestOutputKind.DELTA, "id", Schedule(policy, merges=True), ReaderWaker())
    outputs = [output(finished=False) for _ in range(chunks * size)]
    events = 0
    with count_cost() as cost:
        for number, one in enumerate(outputs, 1):
            queue.put(one)
            if number % size == 0:
                while queue.get_nowait() is not None:
                    events += 1
    # The first token is an event of its own.
    assert events == chunks + 1
    queue.close()
    return cost


def test_tokens_that_wait_for_their_chunk_cost_as_much_as_before() -> None:
    async def measure() -> tuple[Cost, Cost, Cost]:
        await stream(10, 10)
        return await stream(10, 10), await stream(10, 20), await stream(20, 10)

    few, more_tokens, more_chunks = asyncio.run(measure())
    token = (more_tokens["own"] - few["own"]) / 100
    # It has ten tokens.
    chunk = (more_chunks["own"] - few["own"]) / 10
    check_costs(
        {
            "one more token in the engine": {"own": round(token, 1)},
            "one more chunk in the engine": {"own": round(chunk, 1)},
        }
    )
