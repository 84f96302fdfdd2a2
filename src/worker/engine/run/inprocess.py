"""The running engine: vLLM's AsyncLLM in this process, on an event loop of its own."""

import asyncio
import gc
import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.description import described
from worker.engine.run.adapters import Adapters
from worker.engine.run.generation import Generation
from worker.engine.run.grammar.gate import Gate, trial_for
from worker.engine.run.grammar.trial import Trial
from worker.engine.run.healing.core import Core
from worker.engine.run.healing.healer import Healer
from worker.engine.run.requests.media import media_of
from worker.engine.run.server import Server
from worker.engine.seam.protocols import Client
from worker.settings import Settings

STATS_INTERVAL_S = 10.0


class InProcessEngine:
    """Satisfies ``worker.engine.Engine``, which describes its methods.

    Made by ``worker.engine.start.launch``.
    """

    def __init__(
        self,
        core: Core,
        arguments: EngineArguments,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        died: Future[None],
        start_again: Callable[[], Core],
    ) -> None:
        """Take a started core; ``open`` has to be called next, on the loop.

        ``died``, which engines share, is resolved when the engine is dead and is not started again.
        ``start_again`` is called in a thread when the core has died.
        """
        self.loop = loop
        self._died = died
        self._arguments = arguments
        self._settings = settings
        self._healer = healer = Healer(
            arguments.vllm.served_model_name[0],
            core,
            start_again,
            self._use_next,
            restarts=settings.max_engine_restarts,
            hang_s=settings.engine_hang_s,
        )
        self.aside, self.admit, self.back = healer.aside, healer.absence.admit, healer.back
        self._trial: Trial | None = None
        self._watchers: list[asyncio.Task[Any]] = []

    async def open(self) -> None:
        """Build vLLM's server around the engine; call on its loop."""
        await self._use(self._healer.core)

    async def prepare(self) -> None:
        """Begin to watch a warm engine, and what no job waits for yet; call on its loop.

        What is compiled during the warm-up may take longer than a core that works is silent.
        """
        watch = asyncio.create_task(self._healer.run())
        watch.add_done_callback(self._give_up)
        self._watchers.append(watch)
        if not self._settings.disable_log_stats:
            self._watchers.append(asyncio.create_task(self._log_stats()))
        if self._trial:
            self._watchers.append(asyncio.create_task(self._trial.start()))

    async def _use_next(self, core: Core) -> None:
        await self._use(core)
        # What the core before had is garbage now, and most of it was exempt from collection.
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    async def _use(self, core: Core) -> None:
        """Build everything that depends on a core, and use it from then on."""
        client = core.client
        arguments, settings = self._arguments, self._settings
        tasks = await client.get_supported_tasks()
        # One for all cores: it holds what has been tried.
        self._trial = self._trial or trial_for(client, settings)
        # Before the server takes hold of the client.
        Gate(client, self._trial)
        server = Server(client, arguments.vllm, tasks, media_of(client, settings))
        await server.open()
        adapters = Adapters(settings.base_path, client, server.state)
        # From the model's generation_config; it applies to the raw path only if it was asked for.
        own = client.model_config.get_diff_sampling_param()
        applies = arguments.given.keys() & {"GENERATION_CONFIG", "OVERRIDE_GENERATION_CONFIG"}
        self.generation = generation = Generation(
            client,
            server,
            adapters,
            tasks=tasks,
            defaults={"max_tokens": settings.default_max_tokens, **(own if applies else {})},
            system_prompt=settings.system_prompt,
        )
        self.model = described(arguments, client.vllm_config, frozenset(tasks))
        self.metrics = core.metrics
        self._server = server
        self.keys, self.call = server.keys, server.call
        self.generate, self.check = generation.deltas, generation.check
        self.unload, self.adapters_on_volume = adapters.unload, adapters.on_volume
        self.check_adapter = adapters.checks.refuse_broken

    async def close(self) -> None:
        """Stop the engine and its processes; call on the engine's loop."""
        for watcher in self._watchers:
            watcher.cancel()
        if self._trial:
            await self._trial.close()
        self._client.shutdown()

    @property
    def dead(self) -> bool:
        return self._healer.dead

    @property
    def is_aside(self) -> bool:
        return self._healer.absence.lasts

    @property
    def schema(self) -> dict[str, Any]:
        return self._server.schema

    @property
    def _client(self) -> Client:
        return self._healer.core.client

    async def adopt(self, name: str) -> None:
        await self.generation.adapters.get(name, "model")

    async def cards(self, request_id: str) -> list[dict[str, Any]]:
        async with aclosing(self.call("/v1/models", None, request_id)) as parts:
            body = b"".join([part async for part in parts if isinstance(part, bytes)])
        cards: list[dict[str, Any]] = json.loads(body)["data"]
        return cards

    @property
    def slots(self) -> int:
        config = self._client.vllm_config
        scheduler = config.scheduler_config
        # A lower limit than what the core has memory for; vLLM 0.30 has none.
        active = getattr(scheduler, "max_num_active_seqs", None)
        # With data parallelism every rank has a scheduler.
        return int((active or scheduler.max_num_seqs) * config.parallel_config.data_parallel_size)

    @property
    def unfinished_requests(self) -> int:
        """How many requests hold a slot in the engine, on both paths together."""
        return self._client.output_processor.get_num_unfinished_requests()

    def _give_up(self, watch: asyncio.Task[None]) -> None:
        if not (watch.cancelled() or self._died.done()):
            self._died.set_result(None)

    async def _log_stats(self) -> None:
        while True:
            await asyncio.sleep(STATS_INTERVAL_S)
            await self._client.do_log_stats()
