"""The running engine: vLLM's AsyncLLM in this process, on an event loop of its own."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from worker.asgi import Head
from worker.engine import Delta, Model
from worker.engine.adapters import Adapters
from worker.engine.adapters.files import check_lora_modules
from worker.engine.arguments import EngineArguments
from worker.engine.generation import Generation
from worker.engine.protocols import Client
from worker.engine.server import Server
from worker.engine.translation import START_ERRORS
from worker.job import RawJob
from worker.record import Usage
from worker.settings import Settings

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.1
# Seconds; vLLM stops what is left of a dead core first, and waits for that.
HANDLER_ENDS_S = 30
STATS_INTERVAL_S = 10.0

# How often an engine is started again.
MOST_RESTARTS = 5

# A client, and its metrics.
Started = tuple[Client, CollectorRegistry]

# The prefix of vLLM's metrics.
METRICS = "vllm:"


def take_metrics() -> CollectorRegistry:
    """Move the metrics that vLLM has just registered into a registry of their own.

    The next engine of this process would unregister them: vLLM expects to be the only one.
    """
    registry = CollectorRegistry()
    # There is no public way to list collectors; vLLM looks here, too.
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(METRICS):
            REGISTRY.unregister(collector)
            registry.register(collector)
    return registry


class InProcessEngine:
    """Satisfies ``worker.engine.Engine``. Made by ``worker.engine.launch``."""

    def __init__(
        self,
        started: Started,
        arguments: EngineArguments,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        died: Future[None],
        start_again: Callable[[], Started] | None = None,
    ) -> None:
        """Take a started client; ``open`` has to be called next.

        Args:
            started: vLLM's client, and its metrics.
            arguments: vLLM's.
            settings: the worker's.
            loop: where the engine runs.
            died: resolved when the engine is dead and is not started again; engines share it.
            start_again: called in a thread when the engine has died.
        """
        self.loop = loop
        self._died = died
        self._client, self.metrics = started
        self._arguments = arguments
        self._settings = settings
        self._start_again = start_again
        self._watchers: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Build vLLM's server around the engine and begin to watch it; call on its loop."""
        await self._use((self._client, self.metrics))
        watch = asyncio.create_task(self._watch())
        watch.add_done_callback(lambda ended: None if ended.cancelled() else self._give_up())
        self._watchers.append(watch)
        if not self._settings.disable_log_stats:
            self._watchers.append(asyncio.create_task(self._log_stats()))

    async def _use(self, started: Started) -> None:
        """Build everything that depends on vLLM's client, and use it from then on."""
        client, self.metrics = started
        arguments, settings = self._arguments, self._settings
        tasks = await client.get_supported_tasks()
        check_lora_modules(arguments.vllm.lora_modules or (), client.vllm_config)
        server = Server(client, arguments.vllm, tasks)
        await server.open()
        adapters = Adapters(settings.base_path, client, server.state)
        # From the model's generation_config; it applies to the raw path only if it was asked for.
        own = client.model_config.get_diff_sampling_param()
        applies = arguments.given & {"GENERATION_CONFIG", "OVERRIDE_GENERATION_CONFIG"}
        self.generation = Generation(
            client,
            server,
            adapters,
            tasks=tasks,
            defaults={"max_tokens": settings.default_max_tokens, **(own if applies else {})},
            system_prompt=settings.system_prompt,
        )
        self.model = Model(
            names=tuple(arguments.vllm.served_model_name),
            max_model_len=client.model_config.max_model_len,
            device=client.vllm_config.device_config.device_type,
            tasks=frozenset(tasks),
            temperature=own.get("temperature"),
            max_new_tokens=own.get("max_tokens"),
        )
        self._server, self._client = server, client

    async def close(self) -> None:
        """Stop the engine and its processes; call on the engine's loop."""
        for watcher in self._watchers:
            watcher.cancel()
        self._client.shutdown()

    @property
    def dead(self) -> bool:
        return bool(self._client.errored)

    @property
    def schema(self) -> dict[str, Any]:
        """See ``Engine.schema``."""
        return self._server.schema

    def keys(self, path: str) -> frozenset[str] | None:
        """See ``Engine.keys``."""
        return self._server.keys(path)

    def call(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        request_id: str,
        usage: Usage | None = None,
    ) -> AsyncGenerator[Head | bytes, None]:
        """See ``Engine.call``."""
        return self._server.call(path, body, request_id, usage)

    @property
    def slots(self) -> int:
        """See ``Engine.slots``."""
        config = self._client.vllm_config
        scheduler = config.scheduler_config
        # A lower limit than what the core has memory for; vLLM 0.30 has none.
        active = getattr(scheduler, "max_num_active_seqs", None)
        # With data parallelism every rank has a scheduler.
        return int((active or scheduler.max_num_seqs) * config.parallel_config.data_parallel_size)

    @property
    def unfinished_requests(self) -> int:
        """How many requests hold a slot in the engine, on both paths together."""
        return int(self._client.output_processor.get_num_unfinished_requests())

    def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        """See ``Engine.generate``."""
        return self.generation.deltas(job, request_id)

    async def check(self, job: RawJob) -> None:
        """See ``Engine.check``."""
        await self.generation.check(job)

    async def adapters_on_volume(self) -> list[str]:
        """See ``Engine.adapters_on_volume``."""
        return await self.generation.adapters.names_on_volume()

    async def adopt(self, name: str) -> None:
        """See ``Engine.adopt``."""
        await self.generation.adapters.get(name, "model")

    async def unload(self, name: str) -> None:
        """See ``Engine.unload``."""
        await self.generation.adapters.unload(name)

    async def _watch(self) -> None:
        """Start the engine again whenever it dies; return when that is not possible any more."""
        for restarts in range(MOST_RESTARTS + 1):
            while not self.dead:  # noqa: ASYNC110 - vLLM offers nothing to wait for
                await asyncio.sleep(WATCH_INTERVAL_S)
            if self._start_again is None or restarts == MOST_RESTARTS:
                break
            log.error("the engine of %s died: it is started again", self.model.names[0])
            try:
                if handler := self._client.output_handler:
                    # It fails the requests that run. A shutdown would cancel it.
                    await asyncio.wait([handler], timeout=HANDLER_ENDS_S)
                await asyncio.to_thread(self._client.shutdown)
                await self._use(await asyncio.to_thread(self._start_again))
            except START_ERRORS as error:
                message = f"the engine of {self.model.names[0]} does not start again: {error}"
                log.error(message)  # noqa: TRY400 - vLLM's own log has the traceback
                break
            log.info("the engine of %s is back", self.model.names[0])

    def _give_up(self) -> None:
        if not self._died.done():
            self._died.set_result(None)

    async def _log_stats(self) -> None:
        while True:
            await asyncio.sleep(STATS_INTERVAL_S)
            await self._client.do_log_stats()
