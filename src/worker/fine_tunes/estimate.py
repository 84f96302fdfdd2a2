"""Whether the memory suffices for a training, told before it begins: arithmetic, no measurement."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from worker.errors import InvalidInput
from worker.memory import free_memory, memory_limit
from worker.settings.environment import first_gpu
from worker.store.headers import Unreadable, count_elements
from worker.trainer.spec import Lora, Spec

GIB = 2**30
CONFIG = "config.json"
# Bytes of a weight: in 32 bits on a CPU, in 16 on a GPU.
_WEIGHT = {"cpu": 4, "cuda": 2}
# Of a number that is trained: itself, its gradient, and the optimiser's two averages, in 32 bits.
_TRAINED = 16
# Of a token, for each word of the vocabulary: logits, their logarithms, both gradients; and for
# each of a layer's widths, of which only what goes into each layer is kept for the way back.
_WORD, _WIDTH, _INNER = 16, 80, 20
# Tokens of a row that has to fit at least: longer ones may, or may not.
ROW = 256
# The process itself, without a model: Python and torch, or the context of a GPU.
_PROCESS = {"cpu": GIB // 2, "cuda": GIB}


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


def needed_bytes(spec: Spec) -> int | None:
    """Return what a training takes at least; None: the model's files don't say."""
    weights = _elements(spec.model)
    sizes = Sizes.of(spec.model)
    if weights is None or sizes is None:
        return None
    row = min(spec.max_length, ROW) * sizes.token_bytes
    fixed = weights * _WEIGHT[spec.device] + _PROCESS[spec.device]
    return fixed + sizes.trained(spec.lora) * _TRAINED + row


def memory(device: str) -> Memory | None:
    """Return the memory where a model is trained; None: not known."""
    return _of_gpu() if device == "cuda" else Memory(free_memory(), memory_limit())


class Sizes(BaseModel):
    """What a model's memory depends on, in transformers' words."""

    model_config = ConfigDict(frozen=True)

    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int | None = None

    @classmethod
    def of(cls, model: Path) -> "Sizes | None":
        """Read them from a model's directory; None: it doesn't say."""
        try:
            config = json.loads((model / CONFIG).read_bytes())
            return cls.model_validate(config.get("text_config", config))
        except (OSError, ValueError, AttributeError):
            return None

    @property
    def inner(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def token_bytes(self) -> int:
        kept = 4 * self.num_hidden_layers * self.hidden_size
        layer = _WIDTH * self.hidden_size + _INNER * self.inner
        return kept + layer + _WORD * self.vocab_size

    def trained(self, lora: Lora) -> int:
        """Return how many numbers an adapter of the usual layers has, about."""
        attention, mlp = 4 * 2 * self.hidden_size, 3 * (self.hidden_size + self.inner)
        return self.num_hidden_layers * lora.r * (attention + mlp)


def _elements(model: Path) -> int | None:
    """Return how many weights the files of a model hold; None: it has none that can be read."""
    try:
        return count_elements(model.glob("*.safetensors")).total() or None
    except Unreadable:
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
