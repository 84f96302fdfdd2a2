"""A base model that is checked but not served, for workers that only train."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.run.adapters.files import AdapterChecker
from worker.engine.run.description import describe_model
from worker.volume.adapters import adapter_names, adapters_directory


class UnservedModel:
    """Implementation of ``BaseModelHandle``, which documents the methods.

    It takes the arguments that an engine would be started with, and that vLLM has configured.
    """

    is_dead = is_suspended = False
    # Number of concurrent jobs, such as trainings and file requests; none needs an engine.
    slots = 8

    def __init__(
        self, arguments: EngineArguments, volume: Path, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loop = loop
        self.model = describe_model(arguments, frozenset({"generate"}))
        self._checker = AdapterChecker(arguments.config)
        self._root = adapters_directory(volume)

    async def model_cards(self, request_id: str) -> list[dict[str, Any]]:
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": name}
            | {"parent": None, "max_model_len": self.model.max_model_len, "permission": []}
            for name in self.model.names
        ]

    async def adapter_problems_on_volume(self) -> Mapping[str, str | None]:
        return dict.fromkeys(await asyncio.to_thread(adapter_names, self._root))

    async def unload_adapter(self, name: str) -> None:
        """Do nothing: no adapter is loaded."""

    async def check_adapter(self, directory: Path) -> None:
        await self._checker.check_files_in_thread(directory)
