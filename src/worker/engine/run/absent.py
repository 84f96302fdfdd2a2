"""A model without an engine: known and checked, so that adapters can be trained for it."""

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from worker.asgi import Head
from worker.engine import Delta
from worker.engine.arguments import EngineArguments
from worker.engine.description import described
from worker.engine.run.adapters.files import BrokenAdapter, base_shapes, check_adapter
from worker.errors import InvalidInput, NoEngine
from worker.job import RawJob
from worker.record import Usage
from worker.volume.adapters import adapter_names, directory

MODELS = "/v1/models"


class AbsentEngine:
    """Satisfies ``worker.engine.Engine``, but answers nothing that needs a model.

    Args:
        arguments: that an engine would be started with.
        config: vLLM's, made of them.
        volume: where the adapters are.
        loop: where it is used.
    """

    dead = False
    is_aside = False
    # Of requests that are refused, or answered without a model.
    slots = 8
    schema: Mapping[str, Any] = {"paths": {}, "components": {"schemas": {}}}

    def __init__(
        self,
        arguments: EngineArguments,
        config: Any,
        volume: Path,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.loop = loop
        self.model = described(arguments, config, frozenset({"generate"}))
        self.metrics = CollectorRegistry()
        self._config = config
        self._root = directory(volume)

    def aside(self, patience_s: float, drain_s: float) -> AbstractAsyncContextManager[None]:
        """See ``Engines.aside``."""
        return nullcontext()

    async def admit(self) -> None:
        """Refuse every request.

        Raises:
            NoEngine: always.
        """
        raise NoEngine

    async def back(self, request_id: str) -> None:
        """See ``admit``."""
        raise NoEngine

    def keys(self, path: str) -> frozenset[str] | None:
        """See ``Engine.keys``."""
        return None

    async def call(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        request_id: str,
        usage: Usage | None = None,
    ) -> AsyncGenerator[Head | bytes, None]:
        """Answer what models there are, and nothing else; see ``Engine.call``."""
        if path != MODELS:
            raise NoEngine
        cards = [
            {"id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": name}
            | {"parent": None, "max_model_len": self.model.max_model_len, "permission": []}
            for name in self.model.names
        ]
        yield Head(200, "application/json")
        yield json.dumps({"object": "list", "data": cards}).encode()

    async def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        """See ``admit``."""
        raise NoEngine
        yield  # for the type: a generator

    async def check(self, job: RawJob) -> None:
        """See ``admit``."""
        raise NoEngine

    async def adapters_on_volume(self) -> Mapping[str, str | None]:
        """See ``Engine.adapters_on_volume``."""
        return dict.fromkeys(await asyncio.to_thread(adapter_names, self._root))

    async def adopt(self, name: str) -> None:
        """See ``admit``."""
        raise NoEngine

    async def unload(self, name: str) -> None:
        """Do nothing: none is loaded."""

    async def check_adapter(self, directory: Path) -> None:
        """See ``Engine.check_adapter``."""
        try:
            await asyncio.to_thread(self._check, directory)
        except BrokenAdapter as broken:
            raise InvalidInput(str(broken)) from broken

    def _check(self, directory: Path) -> None:
        config = self._config
        base = base_shapes(config.model_config, config.load_config.download_dir)
        check_adapter(directory, config.lora_config, base)


def with_adapters(arguments: EngineArguments) -> EngineArguments:
    """Return arguments with which adapters are served: without an engine that costs nothing."""
    options: Namespace = arguments.vllm
    return arguments if options.enable_lora else arguments.with_options(enable_lora=True)
