"""The real SDK as a process of its own: what it says on the wire, and that the emulator serves it.

`RECORD=1 pytest tests/platform/test_sdk_protocol.py` writes the recording anew;
tests/unit/test_emulator_protocol.py replays it against the emulator.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
import runpod
from aiohttp import web

from emulator import Emulator, Job, Status

pytestmark = [pytest.mark.platform, pytest.mark.asyncio(loop_scope="module")]

HERE = Path(__file__).parent
HANDLER = HERE / "handlers" / "scripted.py"
RECORDING = HERE / "recordings" / f"runpod-{version('runpod')}.json"
MAX_CONCURRENCY = 8


@asynccontextmanager
async def sdk_worker(environ: dict[str, str], max_concurrency: int) -> AsyncIterator[None]:
    """The scripted handler, started as in production."""
    environ = {
        **environ,
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",  # or the SDK would read credentials there
        "MAX_CONCURRENCY": str(max_concurrency),
        "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        "RUNPOD_SKIP_GPU_CHECK": "true",
        "RUNPOD_LOG_LEVEL": "INFO",
        "RUNPOD_PING_INTERVAL": "1000",
    }
    # A session of its own, so that the ping process, which outlives a killed worker, goes too.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", HANDLER, env=environ, start_new_session=True
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


# --- What the SDK says -----------------------------------------------------------------------

CALLS = ["job-take", "job-take-batch", "ping", "job-stream", "job-done", "job-stop"]
ERROR = json.dumps({"error": {"message": "no such model", "code": 404}})
SCENARIOS: dict[str, tuple[int, list[dict[str, Any]]]] = {
    # The slots of the worker, and the jobs of its first take.
    "several": (
        MAX_CONCURRENCY,
        [
            {"id": "streams", "input": {"yields": ["data: ü\n\n", {"choices": [1]}, "last"]}},
            {"id": "fails", "input": {"yields": ["begun", {"error": ERROR}]}},
            {"id": "hangs", "input": {"yields": ["begun", "hang"]}},
        ],
    ),
    "one": (1, [{"id": "streams", "input": {"yields": ["a", "b"]}}]),
}


class RecordingServer:
    """Plays one fixed scenario to a worker and writes down what is said. Not the emulator."""

    def __init__(self, jobs: list[dict[str, Any]]) -> None:
        self.over = asyncio.Event()
        self._jobs: list[dict[str, Any]] | None = jobs
        self._hanging = any(job["id"] == "hangs" for job in jobs)
        self._may_stop = asyncio.Event()
        self._stopped = asyncio.Event()
        self._exchanges: list[dict[str, Any]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/v2/local/{call}/{ids:.+}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        calls = {"job-take": self.take, "job-take-batch": self.take, "job-stop": self.stop}
        answer = await call(request) if (call := calls.get(request.match_info["call"])) else {}
        self._write_down(request, body, answer)
        return web.Response(status=204) if answer is None else web.json_response(answer)

    def _write_down(self, request: web.Request, body: bytes, answer: Any) -> None:
        if request.match_info["call"] == "ping":
            if "hangs" not in request.query.get("job_id", ""):
                return  # whether there is a ping before the hanging job depends on timing
            self._may_stop.set()
        exchange = {
            "method": request.method,
            "path": request.path.removeprefix("/v2/local"),
            "query": normalised(dict(request.query)),
            "content_type": request.headers.get("Content-Type"),
            "authorization": request.headers.get("Authorization"),
            "body": json.loads(body) if body else None,
            "answer": answer,
        }
        if exchange not in self._exchanges:  # polls and pings repeat themselves
            self._exchanges.append(exchange)

    async def take(self, request: web.Request) -> Any:
        """All jobs first, then none; over as soon as the worker says it is idle again."""
        if self._jobs is not None:
            jobs, self._jobs = self._jobs, None
            return jobs if "batch" in request.path else jobs[0]
        if self._hanging:
            await self._stopped.wait()
        await asyncio.sleep(0.05)
        if request.query["job_in_progress"] == "0":
            self.over.set()
        return None

    async def stop(self, request: web.Request) -> Any:
        """The hanging job, once a ping has named it; then nothing more."""
        if not self._hanging or self._stopped.is_set():
            await self.over.wait()
            return None
        await self._may_stop.wait()
        self._stopped.set()
        return {"jobsToStop": ["hangs"]}

    def recording(self) -> list[dict[str, Any]]:
        """The exchanges in an order free of timing; the posts of one job stay in theirs."""
        return sorted(self._exchanges, key=rank)


def rank(exchange: dict[str, Any]) -> tuple[Any, ...]:
    path = exchange["path"]
    call = CALLS.index(path.split("/")[1])
    return exchange["answer"] is None, call, path, sorted(exchange["query"].items())


def normalised(query: dict[str, str]) -> dict[str, str]:
    """Without the values that depend on timing."""
    return {key: f"<{key}>" if key in ("batch_size", "job_id") else query[key] for key in query}


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v2"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_sdk_says_what_the_recording_holds(scenario: str) -> None:
    max_concurrency, jobs = SCENARIOS[scenario]
    server = RecordingServer(jobs)
    emulator = Emulator()  # not started: only for the environment it gives its workers
    async with serving(server.app()) as api_url, asyncio.timeout(30):
        environ = {
            name: value.replace(emulator.api_url, api_url)
            for name, value in emulator.worker_environ("w").items()
        }
        async with sdk_worker(environ, max_concurrency):
            await server.over.wait()
    recordings = json.loads(RECORDING.read_text()) if RECORDING.exists() else {}
    if "RECORD" in os.environ:
        recordings[scenario] = server.recording()
        text = json.dumps(recordings, indent=1, ensure_ascii=False, sort_keys=True)
        RECORDING.write_text(f"{text}\n")
    assert server.recording() == recordings[scenario]


# --- That the emulator serves it -------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def emulator() -> AsyncIterator[Emulator]:
    """An emulator with one worker for all the tests below."""
    async with Emulator() as running, sdk_worker(running.worker_environ(), MAX_CONCURRENCY):
        assert await running.queue.arrived.wait_for(lambda: bool(running.queue.workers), 30)
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def openai_client(emulator: Emulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=emulator.openai_url, api_key="any", max_retries=0
    ) as client:
        yield client


def submit(emulator: Emulator, *yields: object) -> Job:
    return emulator.queue.submit({"input": {"yields": yields}})


async def test_every_yield_arrives_in_order_and_in_the_aggregate(emulator: Emulator) -> None:
    outputs = [{"number": number, "text": "ü"} for number in range(50)]
    job = submit(emulator, *outputs)
    assert await job.wait_ended(10)
    assert [chunk.output for chunk in job.chunks] == outputs
    assert (job.status, job.output) == (Status.COMPLETED, outputs)


async def test_a_yielded_error_fails_the_job_with_its_text(emulator: Emulator) -> None:
    job = submit(emulator, "begun", {"error": ERROR})
    assert await job.wait_ended(10)
    assert (job.status, job.error, job.output) == (Status.FAILED, ERROR, None)


async def test_cancelling_frees_the_workers_slots(emulator: Emulator) -> None:
    """With a hanging job in every slot, the next job runs only if cancelling frees one."""
    hanging = [submit(emulator, "begun", "hang") for _ in range(MAX_CONCURRENCY)]
    for job in hanging:
        assert await anext(job.follow())
        emulator.queue.cancel(job)
    job = submit(emulator, "next")
    assert await job.wait_ended(15)
    assert job.output == ["next"]


async def test_a_job_that_comes_after_its_polling_worker_died_is_run_by_the_next() -> None:
    """The dead worker's poll, held for 20 s, must not swallow the job."""
    async with Emulator() as emulator:
        queue = emulator.queue
        async with sdk_worker(emulator.worker_environ("dead"), MAX_CONCURRENCY):
            assert await queue.arrived.wait_for(lambda: "dead" in queue.workers, 30)
        job = submit(emulator, "run")
        async with sdk_worker(emulator.worker_environ("alive"), MAX_CONCURRENCY):
            assert await job.wait_ended(30)
    assert (job.worker, job.output) == ("alive", ["run"])


async def test_an_openai_client_lists_models(openai_client: openai.AsyncOpenAI) -> None:
    models = await openai_client.models.list()
    assert [model.id for model in models.data] == ["/v1/models"]


def chat(message: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": message}]}


async def test_an_openai_client_gets_a_whole_answer(openai_client: openai.AsyncOpenAI) -> None:
    completion = await openai_client.chat.completions.create(**chat("hello there"))
    assert completion.choices[0].message.content == "hello there"


async def test_an_openai_client_gets_a_streamed_answer(openai_client: openai.AsyncOpenAI) -> None:
    stream = await openai_client.chat.completions.create(**chat("a b c"), stream=True)
    deltas = [chunk.choices[0].delta.content async for chunk in stream]
    assert deltas == [None, "a", "b", "c"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failed_job_raises_the_openai_clients_own_exception(
    openai_client: openai.AsyncOpenAI, stream: bool
) -> None:
    with pytest.raises(openai.NotFoundError, match="no such model") as caught:
        await openai_client.chat.completions.create(**chat("fail"), stream=stream)
    assert caught.value.param == "model"


async def test_an_openai_client_that_closes_its_stream_cancels_the_job(
    emulator: Emulator, openai_client: openai.AsyncOpenAI
) -> None:
    stream = await openai_client.chat.completions.create(**chat("hang"), stream=True)
    job = list(emulator.queue.jobs.values())[-1]
    await stream.close()
    assert await job.wait_ended(5)
    assert job.status is Status.CANCELLED


async def test_the_platforms_own_client_is_served(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runpod, "endpoint_url_base", emulator.api_url)

    def use() -> tuple[Any, ...]:
        endpoint = runpod.Endpoint(emulator.options.endpoint, api_key="any")
        job = endpoint.run({"yields": ["a", "b"]})
        hanging = endpoint.run({"yields": ["begun", "hang"]})
        hanging.cancel()
        streamed = list(job.stream())
        statuses = [job.status(), hanging.status()]
        return streamed, job.output(), statuses, endpoint.run_sync({"yields": ["c"]})

    streamed, output, statuses, synced = await asyncio.to_thread(use)
    assert streamed == output == ["a", "b"]
    assert statuses == ["COMPLETED", "CANCELLED"]
    assert synced == ["c"]
