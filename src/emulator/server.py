"""The emulator as a whole: one aiohttp server, one endpoint, one event loop."""

from types import TracebackType
from typing import Self

from aiohttp import web

from emulator.gateway import Gateway
from emulator.jobs import Job, Queue
from emulator.options import Options
from emulator.public_api import PublicApi
from emulator.wire import json_errors
from emulator.worker_api import WorkerApi

_MAX_BODY_BYTES = 64 << 20
# Long-polls never end by themselves in time: they are cut off.
_SHUTDOWN_S = 0.05


class Emulator:
    """A local RunPod Serverless platform with one endpoint. An async context manager."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.queue = Queue()
        self._runner: web.AppRunner | None = None
        self._port = self.options.port

    async def start(self) -> None:
        app = web.Application(middlewares=[json_errors], client_max_size=_MAX_BODY_BYTES)
        for api in (WorkerApi, PublicApi, Gateway):
            for route in api(self.queue, self.options).routes():
                app.router.add_route(
                    route.method, f"/v2/{self.options.endpoint}{route.path}", route.handler
                )
        # A closed connection cancels its handler: that is how a worker that went away, and a
        # client that hung up, are noticed.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self.options.host, self.options.port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def api_url(self) -> str:
        """What RunPod's own client calls the endpoint URL base."""
        return f"http://{self.options.host}:{self._port}/v2"

    @property
    def url(self) -> str:
        return f"{self.api_url}/{self.options.endpoint}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/openai/v1"

    def job(self, job_id: str) -> Job:
        return self.queue.jobs[job_id]

    def worker_environ(self, worker: str = "worker-1") -> dict[str, str]:
        """The variables that make the real SDK talk to this emulator."""
        # `$ID` means the worker in the first and the job in the others. The SDK appends
        # parameters with `&`, so each URL needs a `?` already.
        return {
            "RUNPOD_WEBHOOK_GET_JOB": f"{self.url}/job-take/$ID?gpu=local",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{self.url}/job-stream/$RUNPOD_POD_ID/$ID?gpu=local",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{self.url}/job-done/$RUNPOD_POD_ID/$ID?gpu=local",
            "RUNPOD_WEBHOOK_PING": f"{self.url}/ping/$RUNPOD_POD_ID",
            "RUNPOD_AI_API_KEY": "local",
            "RUNPOD_POD_ID": worker,
            "RUNPOD_ENDPOINT_ID": self.options.endpoint,
        }
