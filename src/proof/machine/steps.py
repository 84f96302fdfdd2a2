"""The steps of a proof: each measures a side that has started, and returns the figures."""

import asyncio
import json
import re
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from proof.measure import loads
from proof.measure.comparison import Round
from proof.measure.loads import Load
from proof.measure.processes import Lost, is_resource_tracker, run_process
from proof.measure.sides import (
    EMULATOR,
    HANDLER,
    NAME,
    PYTHONPATH,
    Conditions,
    HttpSide,
    WorkerSide,
    first_token,
    free_port,
    worker_settings,
)

CHAT = "/v1/chat/completions"
NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
STREAM = "one stream"
ADAPTERS = ("adapter-1", "adapter-2")
EMBEDDER = "embedder"
EMBEDDING_CALLERS = 4
TEXTS = 16
CANCELS = 5
# Callers when the core is killed.
CALLERS = 16
RUNNING = re.compile(rb"^vllm:num_requests_running\{[^}]*\} ([0-9.]+)", re.MULTILINE)
# Maximum seconds until the metrics show a number of running requests.
RUNNING_S = 60.0
# Maximum seconds until the engine answers after the core's death; the server does not come back.
RECOVERY_S = 300.0
BATCH_INPUT = "inbox/requests.jsonl"
ROWS = 64
# Seconds between two requests for a job's status.
POLL_S = 0.2


async def warm_up(side: HttpSide, load: Load) -> Round:
    await side.run(load)
    return Round({})


async def measure_load(side: HttpSide, name: str, load: Load) -> Round:
    measured = await side.run(load)
    return Round({name: measured.figures})


async def measure_stream(side: HttpSide, load: Load) -> Round:
    measured = await side.run(load)
    return Round({STREAM: measured.figures}, measured.arrivals)


async def measure_memory(side: HttpSide) -> Round:
    return Round({"memory": {"mib": side.memory_mib()}})


def adapter_options(folder: Path) -> dict[str, Any]:
    """Return the options of an engine that serves the adapters of a folder."""
    modules = [{"name": name, "path": str(folder / name)} for name in ADAPTERS]
    return {"enable_lora": True, "max_loras": len(ADAPTERS), "lora_modules": modules}


async def measure_adapters(side: HttpSide, load: Load) -> Round:
    """Run a load whose requests name the model and both adapters in turn."""
    models = (NAME, *ADAPTERS)
    async with aiohttp.ClientSession() as client:
        texts = {await _answer_text(client, side, model) for model in models}
    if len(texts) < len(models):
        raise Lost("an adapter does not change the model's text")
    measured = await side.run(load, models)
    return Round({"adapters": measured.figures})


async def _answer_text(client: aiohttp.ClientSession, side: HttpSide, model: str) -> str:
    """Return the greedy answer of a model or an adapter to a short prompt."""
    body = loads.body(model, "Hi", Load(1, 1, 16, stream=False))
    async with client.post(f"{side.base}/chat/completions", json=body) as response:
        response.raise_for_status()
        return str((await response.json())["choices"][0]["message"]["content"])


async def measure_embedder(side: HttpSide, load: Load) -> Round:
    """Run a load while other callers get embeddings, and count the embeddings."""
    counts: list[int] = []

    async def embed(client: aiohttp.ClientSession) -> None:
        body = {"model": EMBEDDER, "input": loads.prompts(TEXTS)}
        while True:
            async with client.post(f"{side.base}/embeddings", json=body) as response:
                response.raise_for_status()
                counts.append(len((await response.json())["data"]))

    began = time.perf_counter()
    async with aiohttp.ClientSession() as client, asyncio.TaskGroup() as group:
        callers = [group.create_task(embed(client)) for _ in range(EMBEDDING_CALLERS)]
        measured = await side.run(load)
        for caller in callers:
            caller.cancel()
    rate = sum(counts) / (time.perf_counter() - began)
    return Round({"embedder": measured.figures | {"embeddings_per_s": rate}})


async def measure_cancel(side: HttpSide, tokens: int) -> Round:
    """Return the milliseconds from a cancel until the engine's metrics show its slot as free.

    The engine updates its metrics with each step, so another request must be running. An answer of
    ``tokens`` tokens doesn't end before its cancel.
    """
    body = loads.body(NAME, "Hi", Load(1, 1, tokens))
    times_ms = []

    async with _open_client() as client, asyncio.TaskGroup() as group:

        async def keep_running() -> None:
            while True:
                await _read_to_end(client, side, body)

        other = group.create_task(keep_running())
        await _wait_for_running(client, side, 1)
        for _ in range(CANCELS):
            async with _cancelled_request(client, side, body):
                await _wait_for_running(client, side, 2)
                began = time.perf_counter()
            await _wait_for_running(client, side, 1)
            times_ms.append(1000 * (time.perf_counter() - began))
        other.cancel()
    return Round({"cancel": {"freed_ms": statistics.median(times_ms)}})


@asynccontextmanager
async def _cancelled_request(
    client: aiohttp.ClientSession, side: HttpSide, body: dict[str, Any]
) -> AsyncIterator[None]:
    """Send a request, and cancel it at the end of the block as a caller of the side does."""
    if isinstance(side, WorkerSide):
        job_input = {"openai_route": CHAT, "openai_input": body}
        job = await _submit_job(client, side.endpoint, job_input)
        try:
            yield
        finally:
            async with client.post(f"{side.endpoint}/cancel/{job}"):
                pass
    else:
        response = await client.post(f"{side.base}/chat/completions", json=body)
        try:
            yield
        finally:
            response.close()


async def kill_core(side: HttpSide, tokens: int) -> Round:
    """Kill the engine core under streams; return the seconds until errors and the next answer.

    An answer of ``tokens`` tokens doesn't end before the kill.
    """
    body = loads.body(NAME, "Hi", Load(1, 1, tokens))
    for core in psutil.Process(side.process.pid).children(recursive=True):
        if "EngineCore" in " ".join(core.cmdline()):
            break
    else:
        raise Lost("the side has no engine core in a process of its own")
    async with _open_client() as client:
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(_read_to_end(client, side, body)) for _ in range(CALLERS)]
            await _wait_for_running(client, side, CALLERS)
            killed = time.perf_counter()
            core.kill()
        ends = [stream.result() for stream in streams]
        figures = {
            "error_s": max(end.at for end in ends) - killed,
            "retryable": sum(end.is_retryable for end in ends),
        }
        if (answered := await _wait_for_answer(client, side)) is not None:
            figures["recovered_s"] = answered - killed
        return Round({"core killed": figures})


def _open_client() -> aiohttp.ClientSession:
    # A connection that waits for its next request may be closed by the server in that moment.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=NO_TIMEOUT)


@dataclass(frozen=True)
class StreamEnd:
    """The end of a stream: its time, and whether its error says that a retry can succeed."""

    at: float
    is_retryable: bool


async def _read_to_end(
    client: aiohttp.ClientSession, side: HttpSide, body: dict[str, Any]
) -> StreamEnd:
    last = b""
    with suppress(aiohttp.ClientError):
        async with client.post(f"{side.base}/chat/completions", json=body) as response:
            if response.status == 400:
                raise Lost(f"400: {await response.text()}")
            async for part in response.content.iter_any():
                last = (last + part)[-10_000:]
    is_retryable = b'"retryable": true' in last or b'"retryable":true' in last
    return StreamEnd(time.perf_counter(), is_retryable)


async def _wait_for_running(client: aiohttp.ClientSession, side: HttpSide, count: int) -> None:
    """Wait until the engine's metrics show this number of running requests."""
    deadline = time.monotonic() + RUNNING_S
    url = f"{side.base.removesuffix('/v1')}/metrics"
    while time.monotonic() < deadline:
        async with client.get(url) as response:
            content = await response.read()
        if (found := RUNNING.search(content)) and float(found[1]) == count:
            return
        await asyncio.sleep(0.001)
    raise Lost(f"the metrics never showed {count} running requests")


async def _wait_for_answer(client: aiohttp.ClientSession, side: HttpSide) -> float | None:
    """Return the time of the next complete answer; None if the side exits."""
    body = loads.body(NAME, "Hi", Load(1, 1, 2, stream=False))
    async with asyncio.timeout(RECOVERY_S):
        while side.process.returncode is None:
            with suppress(aiohttp.ClientError):
                async with client.post(f"{side.base}/chat/completions", json=body) as response:
                    await response.read()
                    if response.status == 200:
                        return time.perf_counter()
            await asyncio.sleep(0.05)
    return None


@asynccontextmanager
async def restarted_worker(model: Path, conditions: Conditions) -> AsyncIterator[HttpSide]:
    """Run a worker that the platform starts again when it exits; the process is the platform's."""
    port = free_port()
    logs = Path(conditions.environ["BASE_PATH"], "logs")
    options = ["--port", str(port), "--worker-port", str(free_port()), "--lost-as", "requeued"]
    options += ["--logs", str(logs), "--gateway-timeout", str(conditions.start_s)]
    environ = {**PYTHONPATH, **conditions.environ, **worker_settings(model, conditions.engine)}
    began = time.monotonic()
    async with run_process((*EMULATOR, *options, "--", *HANDLER), environ, quiet=True) as platform:
        base = f"http://127.0.0.1:{port}/v2/local/openai/v1"
        try:
            first_s = await first_token(base, platform, conditions.start_s) - began
        except (Lost, TimeoutError) as error:
            raise Lost(str(error) or "no token in time", _last_lines(logs)) from None
        yield HttpSide(base, platform, first_s)


def _last_lines(logs: Path) -> list[str]:
    return [line for log in logs.glob("*.log") for line in log.read_text().splitlines()][-20:]


async def measure_batch(side: HttpSide, volume: Path, lines: int, tokens: int) -> Round:
    """Run a batch, kill its worker after half of the lines, and wait for the batch's end."""
    load = Load(1, lines, tokens, stream=False)
    path = volume / BATCH_INPUT
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for number, prompt in enumerate(loads.prompts(lines)):
            body = loads.body(NAME, prompt, load)
            line = {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}
            file.write(json.dumps(line) + "\n")
    endpoint = side.base.removesuffix("/openai/v1")
    job_input = {"batch": {"input_path": BATCH_INPUT, "endpoint": CHAT}}
    began = time.perf_counter()
    async with aiohttp.ClientSession(raise_for_status=True) as client:
        job = await _submit_job(client, endpoint, job_input)
        done = 0
        while done < lines / 2:
            status = await _job_status(client, endpoint, job)
            if status["status"] == "COMPLETED":
                raise Lost("the batch ended before its worker could be killed")
            done = max(done, (status.get("output") or {}).get("done", 0))
            await asyncio.sleep(POLL_S)
        killed = time.perf_counter()
        # All processes of the worker, as if its machine were lost.
        for process in psutil.Process(side.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if not is_resource_tracker(process):
                    process.kill()
        output = await _wait_for_output(client, endpoint, job)
    ended = time.perf_counter()
    counts = output[0]["batch"]["request_counts"]
    if counts["completed"] != lines:
        raise Lost(f"the batch's counts are {counts}, of {lines} lines")
    figures = {"lines": lines, "lines_per_s": done / (killed - began), "stored": done}
    return Round({"batch": {**figures, "resumed_s": ended - killed}})


async def measure_fine_tune(side: WorkerSide) -> Round:
    answer = {"role": "assistant", "content": "Yes."}
    prompts = loads.prompts(ROWS)
    rows = [{"messages": [{"role": "user", "content": text}, answer]} for text in prompts]
    job_input = {"fine_tune": {"rows": rows, "hyperparameters": {"n_epochs": 1}}}
    began = time.perf_counter()
    async with aiohttp.ClientSession(raise_for_status=True) as client:
        job = await _submit_job(client, side.endpoint, job_input)
        output = await _wait_for_output(client, side.endpoint, job)
        trained_s = time.perf_counter() - began
        adapter = output[0]["fine_tune"]["fine_tuned_model"]
        await _answer_text(client, side, adapter)
    answered_s = time.perf_counter() - began
    return Round({"fine-tune": {"trained_s": trained_s, "answered_s": answered_s}})


async def _submit_job(client: aiohttp.ClientSession, endpoint: str, job_input: Any) -> str:
    body = {"input": job_input, "policy": {"executionTimeout": 3_600_000}}
    async with client.post(f"{endpoint}/run", json=body) as response:
        return str((await response.json())["id"])


async def _job_status(client: aiohttp.ClientSession, endpoint: str, job: str) -> dict[str, Any]:
    async with client.get(f"{endpoint}/status/{job}") as response:
        status: dict[str, Any] = await response.json()
    if status["status"] not in ("IN_QUEUE", "IN_PROGRESS", "COMPLETED"):
        raise Lost(f"a job is {status['status']}: {status.get('error')}")
    return status


async def _wait_for_output(client: aiohttp.ClientSession, endpoint: str, job: str) -> Any:
    while (status := await _job_status(client, endpoint, job))["status"] != "COMPLETED":  # noqa: ASYNC110 - another process runs it
        await asyncio.sleep(POLL_S)
    return status["output"]
