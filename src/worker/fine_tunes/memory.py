"""Memory for a training: estimated before it begins, made by what is beside it, or waited for."""

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

from trainer.spec import Spec
from worker.errors import InvalidInput
from worker.process.estimates import GIB, NUMBER, OPTIMIZER, PROCESS, WEIGHT, ModelSizes
from worker.process.memory import free_memory, memory_limit
from worker.settings.environment import first_gpu
from worker.store.disk import count_elements

CONFIG = "config.json"
# Tokens of a row that has to fit at least: longer ones may, or may not.
ROW = 256
# Seconds between looks at whether the training has to stop, and at the memory.
WATCH_S = 1.0

# Returns whether the training has to stop.
Stops = Callable[[], Awaitable[object]]


class Memory(NamedTuple):
    """Bytes where a model is trained: those that are free, and all."""

    free: int
    total: int


class MemoryTaken(InvalidInput):
    """There is enough memory for a training, but others have too much of it now."""


def check_memory(spec: Spec, there: Memory | None = None) -> None:
    """Refuse a training that can't fit into the memory that is free now.

    Args:
        spec: what is to be trained.
        there: the memory; None: what this machine has.

    Raises:
        MemoryTaken: it can't now.
        InvalidInput: it never can; the message says what to change.
    """
    there = there or memory(spec.device)
    needed = needed_bytes(spec)
    if there is None or needed is None or needed <= there.free:
        return
    what = "GPU" if spec.device == "cuda" else "machine"
    taken = needed <= there.total
    refused, has = (MemoryTaken, there.free) if taken else (InvalidInput, there.total)
    raise refused(
        f"The training needs at least {needed / GIB:.1f} GiB of memory, and this {what} has "
        f"{has / GIB:.1f} GiB{' left' if taken else ''}. A worker that is started with --train, "
        "on an endpoint of its own with the same volume, has no engine beside it; a smaller r in "
        "peft_config, or a smaller model, needs less."
    )


@contextlib.asynccontextmanager
async def made(
    making: AbstractAsyncContextManager[None], stops: Stops, is_left: Callable[[], bool]
) -> AsyncGenerator[bool, None]:
    """Make room for the block, or yield False: the training has to stop before there is any.

    Args:
        making: makes it.
        stops: returns whether the training has to stop.
        is_left: returns whether the job's time is over.

    What was beside it is back after the block, unless the job's time does not suffice for that.
    """
    entering = asyncio.create_task(making.__aenter__())
    try:
        while not entering.done() and not await stops():
            await asyncio.wait({entering}, timeout=WATCH_S)
        there = entering.done()
        if there:
            entering.result()
        yield there
    finally:
        entering.cancel()
        await asyncio.wait({entering})
        if not entering.cancelled() and entering.exception() is None:
            leaving = asyncio.create_task(making.__aexit__(None, None, None))
            # An engine starts for minutes, and the job's answer says how it goes on.
            while not leaving.done() and not is_left():
                await asyncio.wait({leaving}, timeout=WATCH_S)
            if leaving.done():
                leaving.result()


def needed_bytes(spec: Spec) -> int | None:
    """Return what a training takes at least; None: the model's files don't say."""
    counted, _ = count_elements([*spec.model.glob("*.safetensors")])
    sizes = _sizes(spec.model)
    weights = counted.total() if counted else 0
    if not weights or sizes is None:
        return None
    row = min(spec.max_length, ROW) * sizes.token_bytes(recompute=True)
    fixed = weights * WEIGHT[spec.device] + PROCESS[spec.device]
    return fixed + sizes.adapter_elements(spec.lora.r) * (NUMBER + OPTIMIZER) + row


def memory(device: str) -> Memory | None:
    """Return the memory where a model is trained; None: not known."""
    return _of_gpu() if device == "cuda" else Memory(free_memory(), memory_limit())


def _sizes(model: Path) -> ModelSizes | None:
    """Read what memory depends on from a model's directory; None: it doesn't say."""
    try:
        config = json.loads((model / CONFIG).read_bytes())
        return ModelSizes.model_validate(config.get("text_config", config))
    except (OSError, ValueError, AttributeError):
        return None


def _of_gpu() -> Memory | None:
    """Ask the driver's tool: this process has no context of a GPU, and is to get none."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    # The process that trains takes one GPU, the first that it sees.
    first = () if (gpu := first_gpu()) is None else ("-i", gpu)
    asked = (tool, *first, "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
        free, total = done.stdout.splitlines()[0].split(",")
        return Memory(int(free) * 2**20, int(total) * 2**20)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
