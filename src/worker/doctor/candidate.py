"""An engine that would be started: its arguments, and what is known of its model."""

import contextlib
import json
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from worker.doctor import memory
from worker.doctor.memory import Range, Split
from worker.engine.arguments import EngineArguments
from worker.engine.cache_plan import CachePlan, plan_cache
from worker.engine.machine import Gpu
from worker.engine.model_config import ModelShape, read_model_shape
from worker.engine.options.architectures import Support, support
from worker.engine.options.automatic import fitting_tensor_parallel_size
from worker.errors import StartFailed
from worker.settings.values import is_directory
from worker.store import Snapshot
from worker.store.files import CONFIG


@dataclass(frozen=True)
class Candidate:
    """One of a worker's engines, before it is started.

    Attributes:
        engine: its arguments.
        snapshot: its model, where it is now.
        config: the model's config.json, with the operator's overrides.
        support: how vLLM runs the model's architecture.
        shape: what vLLM reads from the configuration; None if it is not asked, or refuses.
        refusal: why vLLM refuses the model; empty if it does not.
    """

    engine: EngineArguments
    snapshot: Snapshot
    config: Mapping[str, Any]
    support: Support
    shape: ModelShape | None = None
    refusal: str = ""

    @classmethod
    def of(cls, engine: EngineArguments, snapshot: Snapshot) -> Self:
        """Read the model's configuration as vLLM would, if vLLM can run the model at all."""
        overrides = engine.vllm.hf_overrides
        config = {**snapshot.config, **(overrides if isinstance(overrides, Mapping) else {})}
        names = _architectures(config)
        candidate = cls(engine, snapshot, config, support(names, config, engine.vllm.model_impl))
        if not config or (names and not candidate.runnable):
            return candidate
        try:
            return replace(candidate, shape=_read_shape(engine, snapshot, names))
        except StartFailed as error:
            return replace(candidate, refusal=error.message)

    @property
    def arguments(self) -> Namespace:
        """vLLM's own arguments."""
        return self.engine.vllm

    @property
    def prefix(self) -> str:
        """What the names of the engine's settings begin with."""
        return self.engine.prefix

    @property
    def architectures(self) -> list[str]:
        return _architectures(self.config)

    @property
    def runnable(self) -> bool:
        """Whether vLLM has code for the model's architecture, and may run it."""
        if self.support is Support.CODE:
            return bool(self.arguments.trust_remote_code)
        return self.support is not Support.NONE

    @property
    def served(self) -> bool:
        """Whether a route of the worker can use the model, as far as is known."""
        return self.shape is None or self.shape.served

    @property
    def local(self) -> bool:
        """Whether vLLM read all files of the model, not only its config.json from the hub."""
        return _directory(self.snapshot) is not None

    @property
    def pools(self) -> bool:
        """Whether it embeds or ranks, as far as the settings say so."""
        return bool(self.prefix) or self.arguments.runner == "pooling"

    @property
    def split(self) -> Split:
        """How the model is divided among GPUs."""
        tensor = int(self.arguments.tensor_parallel_size)
        if self.shape and "TENSOR_PARALLEL_SIZE" not in self.engine.given:
            tensor = fitting_tensor_parallel_size(tensor, self.shape.heads)
        return Split(tensor, int(self.arguments.pipeline_parallel_size))

    @property
    def whole_weights(self) -> Range:
        """The bytes of all weights, loaded."""
        quantised = memory.quantization_method(self.config)
        return memory.weights(
            self.snapshot.weights_size,
            self.snapshot.tensors,
            self.config,
            self._element_bytes,
            "" if quantised else self.arguments.quantization or "",
        )

    @property
    def weights(self) -> Range:
        """The bytes of weights that one GPU holds."""
        whole = self.whole_weights
        # Experts may be divided over all ranks.
        experts = self.arguments.data_parallel_size if self.arguments.enable_expert_parallel else 1
        high = whole.high and whole.high / self.split.gpus
        return Range(whole.low / self.split.gpus / experts, high)

    def plan(self, tensor: int, gpu: Gpu | None = None) -> CachePlan:
        """Return vLLM's cache for the model, whose layers ``tensor`` GPUs share, or parts of a CPU.

        Raises:
            StartFailed: vLLM refuses the model, or (MachineUnfit) can't build it here.
        """
        with _found(self.engine, self.snapshot) as engine:
            return plan_cache(engine, self.architectures, tensor, gpu)

    def token(self, split: Split) -> Range | None:
        """Return the bytes of a token in the cache of one GPU; None if they are not known."""
        if self.shape is None:
            return None
        cache_dtype = str(self.arguments.kv_cache_dtype)
        token = memory.token(self.shape, split, cache_dtype, self.config)
        # An engine that only encodes has no cache.
        return Range(0, token.high) if self.pools else token

    @property
    def context(self) -> int:
        """Tokens of the longest text that the engine would be started for; 0 if not known."""
        asked = self.arguments.max_model_len
        if asked in (None, -1):
            return self.shape.length if self.shape else 0
        return int(asked)

    @property
    def _element_bytes(self) -> int:
        return self.shape.element_bytes if self.shape else memory.dtype_bytes(self.arguments.dtype)


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def _directory(snapshot: Snapshot) -> Path | None:
    """Return the directory of a model that is on the disk."""
    return snapshot.place if (snapshot.place / CONFIG).is_file() else None


def _read_shape(engine: EngineArguments, snapshot: Snapshot, names: list[str]) -> ModelShape:
    """Return the model's shape by its directory, or by its config.json alone.

    Nothing is asked of the hub.

    Raises:
        StartFailed: vLLM refuses the model.
    """
    with _found(engine, snapshot) as found:
        return read_model_shape(found, names)


@contextlib.contextmanager
def _found(engine: EngineArguments, snapshot: Snapshot) -> Iterator[EngineArguments]:
    """Name the model's directory to vLLM, or one with only its config.json."""
    if not is_directory(engine.vllm.hf_config_path or ""):
        engine = engine.with_options(hf_config_path=None)
    if place := _directory(snapshot):
        yield engine.with_options(model=str(place), tokenizer=str(place))
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(snapshot.config))
        # The repository's code is not there.
        options = {"model": folder, "tokenizer": folder, "trust_remote_code": False}
        try:
            yield engine.with_options(**options)
        except StartFailed as error:
            raise type(error)(error.message.replace(folder, snapshot.model)) from error
