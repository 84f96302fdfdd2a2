"""An engine that would be started: its arguments, and what is known of its model."""

import contextlib
import json
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from worker.doctor.findings import Finding
from worker.engine.arguments import EngineArguments
from worker.engine.cache_plan import CachePlan, batch_defaults, plan_cache
from worker.engine.machine import Gpu
from worker.engine.model_config import ModelShape, Support, read_model_shape, support
from worker.engine.options.automatic import fitting_tensor_parallel_size
from worker.errors import StartFailed
from worker.settings.values import is_directory
from worker.store import Kind, Snapshot, Wanted
from worker.store.files import CONFIG

Parts = Mapping[Wanted, Snapshot | Finding]


@dataclass(frozen=True)
class Candidate:
    """One of a worker's engines, before it is started.

    Attributes:
        engine: its arguments.
        snapshot: its model, where it is now.
        config: the model's config.json, with the operator's overrides.
        architectures: those that it names.
        support: how vLLM runs the model's architecture.
        parts: what it loads besides the model, where it is now; or why it can't be had.
        shape: what vLLM reads from the configuration; None if it is not asked, or refuses.
    """

    engine: EngineArguments
    snapshot: Snapshot
    config: Mapping[str, Any]
    architectures: list[str]
    support: Support
    parts: Parts
    shape: ModelShape | None = None
    _plans: dict[tuple[Any, ...], CachePlan | StartFailed] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def of(
        cls, engine: EngineArguments, snapshot: Snapshot, parts: Parts = MappingProxyType({})
    ) -> Self:
        """Read the model's configuration as vLLM would, if vLLM can run the model at all."""
        overrides = engine.vllm.hf_overrides
        config = {**snapshot.config, **(overrides if isinstance(overrides, Mapping) else {})}
        listed = config.get("architectures")
        names = [str(name) for name in listed] if isinstance(listed, list) else []
        how = support(names, config, engine.vllm.model_impl)
        candidate = cls(engine, snapshot, config, names, how, parts)
        if not config or (names and not candidate.runnable):
            return candidate
        with contextlib.suppress(StartFailed), candidate._placed() as placed:
            return replace(candidate, shape=read_model_shape(placed, names))
        return candidate

    @property
    def arguments(self) -> Namespace:
        """vLLM's own arguments."""
        return self.engine.vllm

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
        return (self.snapshot.place / CONFIG).is_file()

    @property
    def has_tokenizer(self) -> bool:
        """Whether the tokenizer that the engine would load is on the disk."""
        own = [found for part, found in self.parts.items() if part.kind is Kind.TOKENIZER]
        if not own:
            return self.local and not self.snapshot.missing
        return all(isinstance(found, Snapshot) and not found.missing for found in own)

    @property
    def quantization(self) -> str:
        """The method by which the checkpoint is quantised; empty if it is not."""
        # A language model's configuration may stand next to a vision model's.
        parts = [self.config, *(one for one in self.config.values() if isinstance(one, Mapping))]
        for part in parts:
            for key in ("quantization_config", "compression_config"):
                if isinstance(found := part.get(key), Mapping):
                    method = str(found.get("quant_method") or "unknown")
                    return method.replace("_tensors", "-tensors")
        return ""

    @property
    def pipeline(self) -> int:
        """Into how many parts its layers are divided, each on GPUs of its own."""
        return int(self.arguments.pipeline_parallel_size)

    def gpus(self, tensor: int) -> int:
        """Return how many GPUs it takes if so many share every layer."""
        return tensor * self.pipeline * int(self.arguments.data_parallel_size)

    def tensor(self, gpus: int = 1) -> int:
        """Return how many of its GPUs share every layer, as settings say or its heads allow."""
        if "TENSOR_PARALLEL_SIZE" in self.engine.given:
            return int(self.arguments.tensor_parallel_size)
        heads = self.shape.heads if self.shape else 0
        return fitting_tensor_parallel_size(max(1, gpus // self.gpus(1)), heads)

    def plan(self, tensor: int = 1, gpu: Gpu | None = None) -> CachePlan:
        """Return vLLM's cache for the model, which is built once for alike GPUs.

        Args:
            tensor: GPUs that share every layer, or parts of a CPU.
            gpu: one of them; None: this machine's.

        Raises:
            StartFailed: vLLM refuses the model, or (MachineUnfit) can't build it here.
        """
        key = tensor, gpu and batch_defaults(gpu)
        if key not in self._plans:
            try:
                with self._placed() as placed:
                    self._plans[key] = plan_cache(placed, self.architectures, tensor, gpu)
            except StartFailed as error:
                self._plans[key] = error
        plan = self._plans[key]
        if isinstance(plan, StartFailed):
            raise plan
        return plan

    @property
    def offline(self) -> dict[str, Any]:
        """Options with which vLLM asks nothing of the hub."""
        changed: dict[str, Any] = {}
        if not self.local:
            # The repository's code is not here.
            changed["trust_remote_code"] = False
        if not is_directory(self.arguments.hf_config_path or ""):
            changed["hf_config_path"] = None
        return changed

    @contextlib.contextmanager
    def _placed(self) -> Iterator[EngineArguments]:
        """Name the model's directory to vLLM, or one with only its config.json."""
        with directory(self.snapshot) as place:
            yield self.engine.with_options(model=place, tokenizer=place, **self.offline)


@contextlib.contextmanager
def directory(snapshot: Snapshot) -> Iterator[str]:
    """Yield the directory of a model; of one that is not here, one with its config.json.

    Raises:
        StartFailed: from the block, with the model's name in place of such a directory's.
    """
    if (snapshot.place / CONFIG).is_file():
        yield str(snapshot.place)
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(snapshot.config))
        try:
            yield folder
        except StartFailed as error:
            raise type(error)(error.message.replace(folder, snapshot.model)) from error
