"""The steps of a proof, as a table of parts."""

import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from proof.machine import steps
from proof.measure import sides
from proof.measure.comparison import Round
from proof.measure.loads import Load
from proof.measure.sides import Conditions

Step = Callable[[Any], Awaitable[Round]]
START_S = 600.0
STREAMS = (1, 16, 64, 256)
STARTS = ("first start", "second start")
LOADS = {count: "1 stream" if count == 1 else f"{count} streams" for count in STREAMS}
ONE_STREAM = Load(callers=1, requests=1, tokens=200)
GPU_ENGINE: dict[str, Any] = {
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "gpu_memory_utilization": 0.9,
    # The worker would use all GPUs of the machine, the server one.
    "tensor_parallel_size": 1,
}
# The worker's own default on a CPU is not to compile.
CPU_ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": False,
    # So long that an answer does not end before its cancel, also on a busy machine.
    "max_model_len": 16_384,
    "max_num_seqs": 256,
}


@dataclass(frozen=True)
class Session:
    """A start of a side, and the steps that follow it."""

    side: str
    name: str  # of the start, as a step
    start: Callable[[Path, Conditions], AbstractAsyncContextManager[Any]]
    conditions: Conditions
    steps: Mapping[str, Step]  # by their names
    is_reported: bool = False  # whether the figures of the start are part of the result


@dataclass(frozen=True)
class Part:
    """A part of the proof."""

    text: str  # its description for the user
    # For each size of `SIZES`: `tiny` on a CPU, the others on a GPU.
    minutes: tuple[float, float, float]
    sessions: Callable[["Plan"], Sequence[Session]]  # in their order


@dataclass(frozen=True)
class Plan:
    """The conditions and the amount of work of all sessions."""

    folder: Path  # for all files of the run
    is_gpu: bool  # whether the engine runs on a GPU

    @property
    def engine(self) -> dict[str, Any]:
        return GPU_ENGINE if self.is_gpu else CPU_ENGINE

    @property
    def tokens(self) -> int:
        """Number of tokens of an answer that nearly fills the context, after a long template."""
        return int(self.engine["max_model_len"]) - 1024

    def load(self, callers: int, *, stream: bool = True) -> Load:
        # On a GPU a load with fewer requests would end within seconds.
        requests = max(100, 10 * callers) if self.is_gpu else max(16, 2 * callers)
        # One process for 16 callers, and half of the cores at most.
        processes = max(1, min(callers // 16, len(os.sched_getaffinity(0)) // 2, 8))
        # Each process has the same number of callers.
        processes = 2 ** int(math.log2(processes))
        return Load(callers, requests, stream=stream, processes=processes)

    def conditions(self, home: str, volume: str = "volume", **engine: Any) -> Conditions:
        """Return the conditions of a container with an empty or a used home, and a volume."""
        home_path, volume_path = self.folder / home, self.folder / volume
        for path in (home_path / "tmp", volume_path):
            path.mkdir(parents=True, exist_ok=True)
        environ = {
            "HOME": str(home_path),
            "XDG_CACHE_HOME": str(home_path / ".cache"),
            "TMPDIR": str(home_path / "tmp"),
            "BASE_PATH": str(volume_path),
            "PYTHONWARNINGS": "ignore",
            # As the worker has it.
            "VLLM_NO_USAGE_STATS": "1",
        }
        environ |= {} if self.is_gpu else {"VLLM_CPU_KVCACHE_SPACE": "1"}
        return Conditions({**self.engine, **engine}, environ, start_s=START_S)

    def eager_conditions(self, home: str, **engine: Any) -> Conditions:
        """Return conditions without compilation, for steps that are not about speed.

        The home is the volume, too, which no other session has.
        """
        return self.conditions(home, home, enforce_eager=True, **engine)


def speed_sessions(plan: Plan) -> Sequence[Session]:
    """Return two starts of each side, the second one with compiled code, in alternating order."""
    loads: dict[str, Step] = {"warm-up": partial(steps.warm_up, load=plan.load(64))}
    for callers, name in LOADS.items():
        loads[name] = partial(steps.measure_load, name=name, load=plan.load(callers))
    whole = plan.load(64, stream=False)
    loads["64 whole"] = partial(steps.measure_load, name="64 whole", load=whole)
    loads["memory"] = steps.measure_memory
    loads[steps.STREAM] = partial(steps.measure_stream, load=ONE_STREAM)
    loads["cancel"] = partial(steps.measure_cancel, tokens=plan.tokens)
    last: dict[str, Step] = {"core killed": partial(steps.kill_core, tokens=plan.tokens)}
    session = partial(Session, is_reported=True)
    # The worker's second start finds its compiled code on the volume, on what looks like another
    # machine. The server, which has no volume, finds it in the home of its first start.
    first, second = STARTS
    return (
        session("worker", first, sides.worker, plan.conditions("worker-1"), loads),
        session("server", first, sides.server, plan.conditions("server"), loads),
        session("server", second, sides.server, plan.conditions("server"), loads | last),
        session("worker", second, sides.worker, plan.conditions("worker-2"), loads | last),
    )


def adapter_sessions(plan: Plan) -> Sequence[Session]:
    conditions = plan.eager_conditions("adapters", **steps.adapter_options(plan.folder))
    step = {"adapters": partial(steps.measure_adapters, load=plan.load(16))}
    return (
        Session("worker", "start with adapters", sides.worker, conditions, step),
        Session("server", "start with adapters", sides.server, conditions, step),
    )


def embedder_sessions(plan: Plan) -> Sequence[Session]:
    embedder: dict[str, Any] = {
        "embedding_model_name": str(plan.folder / steps.EMBEDDER),
        "embedding_served_model_name": steps.EMBEDDER,
        "embedding_convert": "embed",
    }
    # The embedder has 0.1 of the memory.
    embedder |= {"gpu_memory_utilization": 0.8} if plan.is_gpu else {}
    conditions = plan.eager_conditions("embedder", **embedder)
    step = {"embedder": partial(steps.measure_embedder, load=plan.load(16))}
    return (Session("worker", "start with an embedder", sides.worker, conditions, step),)


def batch_sessions(plan: Plan) -> Sequence[Session]:
    conditions = plan.eager_conditions("batch")
    lines, tokens = (4_000, 64) if plan.is_gpu else (1_500, 64)
    volume = Path(conditions.environ["BASE_PATH"])
    step = {"batch": partial(steps.measure_batch, volume=volume, lines=lines, tokens=tokens)}
    return (Session("worker", "start for a batch", steps.restarted_worker, conditions, step),)


def fine_tune_sessions(plan: Plan) -> Sequence[Session]:
    # The training has the whole memory: the engine stops meanwhile.
    conditions = plan.eager_conditions("fine-tune", enable_lora=True, fine_tune="exclusive")
    step = {"fine-tune": steps.measure_fine_tune}
    return (Session("worker", "start for a fine-tune", sides.worker, conditions, step),)


PARTS = {
    "starts": Part(
        "start both twice, without and with compiled code; 1, 16, 64 and 256 streams, 64 whole"
        " responses, a cancel; at last kill the engine core",
        (5, 10, 20),
        speed_sessions,
    ),
    "adapters": Part("requests for the model and two adapters", (1, 2, 3), adapter_sessions),
    "embedder": Part("an embedder next to the chat model", (0.5, 1, 2), embedder_sessions),
    "batch": Part(
        "a batch whose worker is killed after half of its lines", (2, 2, 4), batch_sessions
    ),
    "fine-tune": Part("a fine-tune, and a chat with its adapter", (0.5, 2, 4), fine_tune_sessions),
}
