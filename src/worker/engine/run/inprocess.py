"""The models of a worker: an engine, on an event loop in this process; or a model to train only.

A new core dies with all that was built around it: vLLM's server, the gate for grammars, and so on.
``InProcessEngine`` builds these for the first core, and again for each core of its ``Healer``.
"""

import asyncio
import gc
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.run.adapters import Adapters
from worker.engine.run.adapters.files import AdapterChecker
from worker.engine.run.core import Core
from worker.engine.run.description import describe_model
from worker.engine.run.generation import Generation
from worker.engine.run.grammar.gate import GrammarGate, create_grammar_tester
from worker.engine.run.grammar.trial import GrammarTester
from worker.engine.run.healing import Healer
from worker.engine.run.requests.gpu_time import ChargedRequests
from worker.engine.run.requests.media import create_media_loader
from worker.engine.run.server import VllmServer
from worker.engine.seam.protocols import Client
from worker.settings import Settings
from worker.volume.adapters import adapter_names, adapters_directory
from worker.volume.ids import VolumeLocation

STATS_INTERVAL_S = 10.0


class InProcessEngine:
    """Implementation of ``worker.engine.Engine``, which documents the methods.

    ``death`` is shared by all engines; it is resolved when an engine is dead and is not started
    again. ``restart_core`` is called in a thread. The caller must call ``use_first_core`` next, on
    the loop.
    """

    def __init__(
        self,
        core: Core,
        arguments: EngineArguments,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        death: Future[None],
        restart_core: Callable[[], Core],
    ) -> None:
        self.loop = loop
        self._death = death
        self._arguments = arguments
        self._settings = settings
        self._healer = healer = Healer(
            arguments.vllm_args.served_model_name[0],
            core,
            restart_core,
            self._use_new_core,
            max_restarts=settings.max_engine_restarts,
            hang_s=settings.engine_hang_s,
        )
        # Methods of ``Engine`` that other objects implement; ``_use_core`` sets those of a core.
        self.suspend = healer.suspend
        self.wait_until_resumed = healer.suspension.wait_until_resumed
        self.wait_for_recovery = healer.wait_for_recovery
        self._tester: GrammarTester | None = None
        self._background_tasks: list[asyncio.Task[Any]] = []

    async def use_first_core(self) -> None:
        """Build vLLM's server, and all else that depends on the core; call on the engine's loop."""
        await self._use_core(self._healer.core)

    async def start_watching(self) -> None:
        """Start watching the engine, and other background tasks; call on the engine's loop.

        The engine must be warm: a core that compiles during the warm-up may be silent for so long
        that it would count as hanging.
        """
        watch = asyncio.create_task(self._healer.run())
        watch.add_done_callback(self._report_death)
        self._background_tasks.append(watch)
        if not self._settings.disable_log_stats:
            self._background_tasks.append(asyncio.create_task(self._log_stats()))

    async def _use_new_core(self, core: Core) -> None:
        await self._use_core(core)
        # The previous core's objects are garbage now, but ``gc.freeze`` has exempted most of them.
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    async def _use_core(self, core: Core) -> None:
        client = core.client
        arguments, settings = replace(self._arguments, config=client.vllm_config), self._settings
        tasks = await client.get_supported_tasks()
        # All cores share one trial, which caches its results.
        self._tester = self._tester or create_grammar_tester(client)
        ChargedRequests(client)
        # The gate must be in place before the server uses the client.
        GrammarGate(client, self._tester)
        media = create_media_loader(client, settings)
        server = VllmServer(client, arguments.vllm_args, tasks, media)
        await server.build_app_state(settings.max_output_tokens)
        location = VolumeLocation.from_settings(settings)
        adapters = Adapters(settings.base_path, client, server.state, location=location)
        # The model's generation_config. On the raw path it applies only if the operator has set
        # GENERATION_CONFIG or OVERRIDE_GENERATION_CONFIG.
        model_defaults = client.model_config.get_diff_sampling_param()
        names = {"GENERATION_CONFIG", "OVERRIDE_GENERATION_CONFIG"}
        if names.isdisjoint(arguments.operator_options):
            model_defaults = {}
        self.generation = generation = Generation(
            client,
            server,
            adapters,
            tasks=tasks,
            defaults={"max_tokens": settings.default_max_tokens, **model_defaults},
            system_prompt=settings.system_prompt,
        )
        self.model = describe_model(arguments, frozenset(tasks), server.max_output_tokens)
        self.metrics = core.metrics
        self._server = server
        # Methods of ``Engine`` that this core's objects implement.
        self.body_keys, self.call = server.body_keys, server.call
        self.generate, self.check_job = generation.generate, generation.check_job
        self.unload_adapter = adapters.unload
        self.adapter_problems_on_volume = adapters.list_complete_adapters
        self.check_adapter = adapters.checker.check_files_in_thread

    async def close(self) -> None:
        """Stop the engine and its processes; call on the engine's loop."""
        for task in self._background_tasks:
            task.cancel()
        if self._tester:
            await self._tester.stop_process()
        self._client.shutdown()

    @property
    def is_dead(self) -> bool:
        return self._healer.is_dead

    @property
    def is_suspended(self) -> bool:
        return self._healer.suspension.is_active

    @property
    def openapi_schema(self) -> dict[str, Any]:
        return self._server.openapi_schema

    @property
    def _client(self) -> Client:
        return self._healer.core.client

    async def load_adapter(self, name: str) -> None:
        await self.generation.adapters.get_or_load(name, "model")

    async def model_cards(self, request_id: str) -> list[dict[str, Any]]:
        async with aclosing(self.call("/v1/models", None, request_id)) as parts:
            body = b"".join([part async for part in parts if isinstance(part, bytes)])
        cards: list[dict[str, Any]] = json.loads(body)["data"]
        return cards

    @property
    def slots(self) -> int:
        config = self._client.vllm_config
        scheduler = config.scheduler_config
        # This option can limit running requests further; vLLM 0.30 doesn't have it.
        active = getattr(scheduler, "max_num_active_seqs", None)
        # With data parallelism every rank has a scheduler.
        return int((active or scheduler.max_num_seqs) * config.parallel_config.data_parallel_size)

    @property
    def unfinished_request_count(self) -> int:
        """Number of requests that the engine has not finished, including those of vLLM's server."""
        return self._client.output_processor.get_num_unfinished_requests()

    def _report_death(self, watch: asyncio.Task[None]) -> None:
        if not (watch.cancelled() or self._death.done()):
            self._death.set_result(None)

    async def _log_stats(self) -> None:
        while True:
            await asyncio.sleep(STATS_INTERVAL_S)
            await self._client.do_log_stats()


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
