"""The emulator: one endpoint on one event loop, with one port for callers and one for workers."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Middleware
from yarl import URL

from emulator.faults import Faults
from emulator.http.app import ENDPOINT_PATH_KEY, make_middlewares, require_key, set_up_runner
from emulator.http.control import ControlApi
from emulator.http.gateways import LLMEngineGateway, OpenAIGateway
from emulator.http.public_api import PublicApi, Webhooks
from emulator.http.worker_api import WorkerApi
from emulator.http.worker_port import WorkerPort, freeze_worker, thaw_worker
from emulator.job_queue import Queue
from emulator.options import MAX_READ_BYTES, Options
from llm_worker_console import make_page


class Emulator:
    """A local RunPod Serverless platform with one endpoint. An async context manager."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.queue = Queue(self.options)
        self.faults = Faults(self.options.faults, self.options.seed)
        self._port = self.options.port
        self._worker_port = WorkerPort(self.options.host, self.options.worker_port)

    async def __aenter__(self) -> Self:
        options = self.options
        async with AsyncExitStack() as stack:
            middlewares = make_middlewares(stack, options.request_log)
            webhooks = Webhooks(options.webhook_retry_delay_s)
            stack.push_async_callback(webhooks.close)
            self.queue.on_end = webhooks.notify
            app = self._make_app(middlewares)
            app.router.add_get("/", self._send_console)
            runner = await set_up_runner(stack, app)
            await web.TCPSite(runner, options.host, options.port).start()
            self._port = runner.addresses[0][1]
            await self._worker_port.start(await set_up_runner(stack, self._make_app(middlewares)))
            stack.push_async_callback(self._worker_port.cancel_outage)
            stack.callback(self._thaw_workers)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        await self._stack.aclose()

    async def begin_outage(self, seconds: float) -> None:
        await self._worker_port.begin_outage(seconds)

    def freeze_worker(self, worker_id: str, seconds: float) -> None:
        freeze_worker(self.queue.get_worker(worker_id), seconds)

    def _thaw_workers(self) -> None:
        for worker in self.queue.workers.values():
            thaw_worker(worker)

    async def _send_console(self, request: web.Request) -> web.Response:
        options = self.options
        page = make_page(
            "emulator",
            needs_key=options.api_key is not None,
            endpoint_path=f"/v2/{options.endpoint}",
        )
        return web.Response(body=page.body, headers=page.headers)

    def _make_app(self, middlewares: Sequence[Middleware]) -> web.Application:
        options, queue, faults = self.options, self.queue, self.faults
        app = web.Application(middlewares=middlewares, client_max_size=MAX_READ_BYTES)
        app[ENDPOINT_PATH_KEY] = endpoint = f"/v2/{options.endpoint}"
        for prefix, key, api in (
            # Workers have their own key in their environment; the emulator doesn't check it.
            (endpoint, None, WorkerApi(queue, faults, options)),
            (endpoint, options.api_key, PublicApi(queue, options)),
            (endpoint, options.api_key, OpenAIGateway(queue, options)),
            ("", options.api_key, ControlApi(queue, faults, self._worker_port)),
            # Checks the key itself: LLM Engine's client sends the key in other headers, too.
            (endpoint, None, LLMEngineGateway(queue, options)),
            ("", None, LLMEngineGateway(queue, options)),
        ):
            for route in api.routes():
                handler = require_key(key, route.handler)
                app.router.add_route(route.method, prefix + route.path, handler)
        return app

    @property
    def root_url(self) -> str:
        """Base URL of the control routes."""
        return str(URL.build(scheme="http", host=self.options.connect_host, port=self._port))

    @property
    def api_url(self) -> str:
        """The value of ``runpod.endpoint_url_base`` for RunPod's client."""
        return f"{self.root_url}/v2"

    @property
    def url(self) -> str:
        return f"{self.api_url}/{self.options.endpoint}"

    @property
    def worker_url(self) -> str:
        """URL of the endpoint for its workers."""
        return str(URL(self.url).with_port(self._worker_port.port))

    @property
    def openai_url(self) -> str:
        return f"{self.url}/openai/v1"

    def worker_environ(self, worker_id: str = "worker-1") -> dict[str, str]:
        """Return the environment variables that make the real SDK use this emulator."""
        # The SDK replaces `$ID` by the worker's id in the first URL and by the job's id in the
        # others. It appends parameters with `&`, so each URL must already have a `?`.
        url = self.worker_url
        return {
            "RUNPOD_WEBHOOK_GET_JOB": f"{url}/job-take/$ID?gpu=local",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{url}/job-stream/$RUNPOD_POD_ID/$ID?gpu=local",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{url}/job-done/$RUNPOD_POD_ID/$ID?gpu=local",
            "RUNPOD_WEBHOOK_PING": f"{url}/ping/$RUNPOD_POD_ID",
            "RUNPOD_AI_API_KEY": "local",
            "RUNPOD_POD_ID": worker_id,
            "RUNPOD_ENDPOINT_ID": self.options.endpoint,
            "RUNPOD_ENDPOINT_BASE_URL": self.api_url,
        }
