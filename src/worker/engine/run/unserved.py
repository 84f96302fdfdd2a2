"""A base model that is checked but not served: all that a worker that only trains needs of it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.description import described
from worker.engine.run.adapters.files import AdapterChecks
from worker.volume.adapters import adapter_names, directory


class UnservedModel:
    """Satisfies ``worker.engine.Base``, which describes it.

    It takes what an engine would be started with, and vLLM's configuration made from that.
    """

    dead = is_aside = False
    # Requests that need an engine are refused, and the others need no slot.
    slots = 8

    def __init__(
        self, arguments: EngineArguments, config: Any, volume: Path, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loop = loop
        self.model = described(arguments, config, frozenset({"generate"}))
        self._checks = AdapterChecks(config)
        self._root = directory(volume)

    async def cards(self, request_id: str) -> list[dict[str, Any]]:
        """Return the cards that vLLM's server would answer with."""
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": name}
            | {"parent": None, "max_model_len": self.model.max_model_len, "permission": []}
            for name in self.model.names
        ]

    async def adapters_on_volume(self) -> Mapping[str, str | None]:
        return dict.fromkeys(await asyncio.to_thread(adapter_names, self._root))

    async def unload(self, name: str) -> None:
        """Do nothing: no adapter is loaded."""

    async def check_adapter(self, directory: Path) -> None:
        await self._checks.refuse_broken(directory)
