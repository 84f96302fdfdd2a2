"""An engine that would be started: vLLM's arguments, and what is known of its model."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from worker.doctor import memory, shape
from worker.doctor.memory import Range, Split
from worker.doctor.shape import Config
from worker.engine.arguments import EngineArguments
from worker.engine.options.architectures import completed
from worker.store import Snapshot


@dataclass(frozen=True)
class Model:
    """One of a worker's engines; ``prefix`` stands before the names of its settings."""

    engine: EngineArguments
    snapshot: Snapshot
    config: Config
    prefix: str = ""

    @classmethod
    def of(cls, engine: EngineArguments, snapshot: Snapshot, prefix: str = "") -> Self:
        """Read the configuration as vLLM does: with its class's defaults, and the overrides."""
        overrides = engine.vllm.hf_overrides
        given = _merged(snapshot.config, overrides if isinstance(overrides, Mapping) else {})
        return cls(engine, snapshot, completed(given) if given else given, prefix)

    @property
    def arguments(self) -> Namespace:
        return self.engine.vllm

    @property
    def architectures(self) -> list[str]:
        named = self.config.get("architectures")
        return [str(name) for name in named] if isinstance(named, list) else []

    @property
    def pools(self) -> bool:
        """Whether it embeds or ranks, as far as the settings say so."""
        return bool(self.prefix) or self.arguments.runner == "pooling"

    @property
    def split(self) -> Split:
        """How it is divided; what the operator left open is made to fit its heads."""
        tensor = int(self.arguments.tensor_parallel_size)
        attention = shape.attention(self.config)
        if attention and "TENSOR_PARALLEL_SIZE" not in self.engine.given:
            tensor = next(size for size in range(tensor, 0, -1) if attention.heads % size == 0)
        return Split(tensor, int(self.arguments.pipeline_parallel_size))

    @property
    def weights(self) -> Range:
        """The weights that one GPU holds."""
        own = memory.quantised(self.config)
        whole = memory.weights(
            self.snapshot.weights_size,
            self.snapshot.tensors,
            self.config,
            self.arguments.dtype,
            "" if own else self.arguments.quantization or "",
        )
        # Experts may be divided over all ranks.
        experts = self.arguments.data_parallel_size if self.arguments.enable_expert_parallel else 1
        high = whole.high and whole.high / self.split.gpus
        return Range(whole.low / self.split.gpus / experts, high)

    def token(self, split: Split) -> Range | None:
        """Return what a token takes in the cache of one GPU; None, if nobody knows."""
        attention = shape.attention(self.config)
        if attention is None:
            return None
        each = memory.dtype_bytes(self.arguments.dtype)
        cache_dtype = str(self.arguments.kv_cache_dtype)
        found = memory.token(attention, split, each, cache_dtype, self.config)
        # One that only encodes keeps nothing.
        return Range(0, found.high) if self.pools else found

    @property
    def context(self) -> int:
        """How long a text the engine would be started for."""
        asked = self.arguments.max_model_len
        return shape.length(self.config).default if asked in (None, -1) else int(asked)


def _merged(config: Config, overrides: Mapping[str, Any]) -> Config:
    both = {
        key: _merged(config[key], value)
        for key, value in overrides.items()
        if isinstance(value, Mapping) and isinstance(config.get(key), Mapping)
    }
    return {**config, **overrides, **both}
