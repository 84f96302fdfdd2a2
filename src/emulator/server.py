"""The emulator: one endpoint on one event loop, with a port for callers and one for workers."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Middleware
from yarl import URL

from emulator.faults import Faults
from emulator.http.app import middlewares, require_key, set_up
from emulator.http.control import Control
from emulator.http.gateway import Gateway
from emulator.http.llm_engine import LLMEngine
from emulator.http.public_api import PublicApi, Webhooks
from emulator.http.worker_api import WorkerApi
from emulator.http.worker_port import WorkerPort, freeze, thaw
from emulator.options import READ_BYTES, Options
from emulator.state.job import Job
from emulator.state.job_queue import Queue


class Emulator:
    """A local RunPod Serverless platform with one endpoint. An async context manager."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.queue = Queue(self.options)
        self.faults = Faults(self.options.faults, self.options.seed)
        self._port = self.options.port
        self._worker_port = WorkerPort(self.options.host, self.options.worker_port)
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Start serving.

        Raises:
            OSError: the port is taken, or the request log can't be written.
        """
        options = self.options
        first = middlewares(self._running, options.request_log)
        webhooks = Webhooks(options.webhook_retry_s)
        self._running.push_async_callback(webhooks.close)
        self.queue.on_end = webhooks.notify
        runner = await set_up(self._running, self._app(first))
        await web.TCPSite(runner, options.host, options.port).start()
        self._port = runner.addresses[0][1]
        await self._worker_port.start(await set_up(self._running, self._app(first)))
        self._running.push_async_callback(self._worker_port.stop)
        self._running.callback(self._thaw_all)

    async def stop(self) -> None:
        await self._running.aclose()

    async def refuse(self, seconds: float) -> None:
        """Begin an outage for workers: connections are reset, and refused for so many seconds.

        Raises:
            RuntimeError: they are refused already.
        """
        await self._worker_port.refuse(seconds)

    def freeze(self, worker: str, seconds: float) -> None:
        """Stop a worker's processes for so many seconds, and reset its connections.

        Raises:
            ProcessLookupError: the emulator has no process of this worker.
        """
        freeze(self.queue.worker(worker), seconds)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except OSError:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _thaw_all(self) -> None:
        for worker in self.queue.workers.values():
            thaw(worker)

    def _app(self, first: Sequence[Middleware]) -> web.Application:
        options, queue, faults = self.options, self.queue, self.faults
        app = web.Application(middlewares=first, client_max_size=READ_BYTES)
        endpoint = f"/v2/{options.endpoint}"
        for prefix, key, api in (
            # Workers have a key of their own, in their environment, which is not checked.
            (endpoint, None, WorkerApi(queue, faults, options)),
            (endpoint, options.api_key, PublicApi(queue, options)),
            (endpoint, options.api_key, Gateway(queue, options)),
            ("", options.api_key, Control(queue, faults, self._worker_port)),
            # It takes the key in other ways, too, and its errors have another shape.
            (endpoint, None, LLMEngine(queue, options)),
            ("", None, LLMEngine(queue, options)),
        ):
            for route in api.routes():
                handler = require_key(key, route.handler)
                app.router.add_route(route.method, prefix + route.path, handler)
        return app

    @property
    def root_url(self) -> str:
        """The URL below which the control routes are."""
        return str(URL.build(scheme="http", host=self.options.address, port=self._port))

    @property
    def api_url(self) -> str:
        """The URL that RunPod's client calls the endpoint URL base."""
        return f"{self.root_url}/v2"

    @property
    def url(self) -> str:
        return f"{self.api_url}/{self.options.endpoint}"

    @property
    def worker_url(self) -> str:
        """The URL of the endpoint for its workers."""
        return str(URL(self.url).with_port(self._worker_port.port))

    @property
    def openai_url(self) -> str:
        return f"{self.url}/openai/v1"

    def job(self, job_id: str) -> Job:
        return self.queue.jobs[job_id]

    def worker_environ(self, worker: str = "worker-1") -> dict[str, str]:
        """Return the variables that make the real SDK use this emulator."""
        # The SDK replaces `$ID`: by the worker's id in the first, by the job's in the others. It
        # appends parameters with `&`, so each URL needs a `?` already.
        url = self.worker_url
        return {
            "RUNPOD_WEBHOOK_GET_JOB": f"{url}/job-take/$ID?gpu=local",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{url}/job-stream/$RUNPOD_POD_ID/$ID?gpu=local",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{url}/job-done/$RUNPOD_POD_ID/$ID?gpu=local",
            "RUNPOD_WEBHOOK_PING": f"{url}/ping/$RUNPOD_POD_ID",
            "RUNPOD_AI_API_KEY": "local",
            "RUNPOD_POD_ID": worker,
            "RUNPOD_ENDPOINT_ID": self.options.endpoint,
            "RUNPOD_ENDPOINT_BASE_URL": self.api_url,
        }
