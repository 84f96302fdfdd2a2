"""Steps about long work: a batch whose worker is killed, and a fine-tune."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from proof.machine.features import answer_text
from proof.measure import http_load
from proof.measure.comparison import Round
from proof.measure.figures import Load
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
INPUT = "inbox/requests.jsonl"
ROWS = 64
# Seconds between two requests for a job's status.
POLL_S = 0.2


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
    """Return the last lines of the worker's log."""
    return [line for log in logs.glob("*.log") for line in log.read_text().splitlines()][-20:]


def write_requests(volume: Path, count: int, tokens: int) -> None:
    """Write the input of a batch to a volume."""
    load = Load(1, count, tokens, stream=False)
    bodies = [http_load.body(NAME, prompt, load) for prompt in http_load.prompts(count)]
    lines = [
        json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body})
        for number, body in enumerate(bodies)
    ]
    path = volume / INPUT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


async def measure_batch(side: HttpSide, volume: Path, lines: int, tokens: int) -> Round:
    """Run a batch, kill its worker after half of the lines, and wait for the batch's end.

    Raises:
        Lost: If a line has no answer, or the batch is too short for a kill.
    """
    write_requests(volume, lines, tokens)
    endpoint = side.base.removesuffix("/openai/v1")
    job_input = {"batch": {"input_path": INPUT, "endpoint": CHAT}}
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
        _kill_worker(side.process.pid)
        output = await _wait_for_output(client, endpoint, job)
    ended = time.perf_counter()
    counts = output[0]["batch"]["request_counts"]
    if counts["completed"] != lines:
        raise Lost(f"the batch's counts are {counts}, of {lines} lines")
    return Round(
        {
            "batch": {
                "lines": lines,
                "lines_per_s": done / (killed - began),
                "stored": done,
                "resumed_s": ended - killed,
            }
        }
    )


async def measure_fine_tune(side: WorkerSide) -> Round:
    """Train an adapter on rows, and call it.

    Raises:
        Lost: If the job fails.
    """
    rows = [
        {
            "messages": [
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": "Yes."},
            ]
        }
        for prompt in http_load.prompts(ROWS)
    ]
    job_input = {"fine_tune": {"rows": rows, "hyperparameters": {"n_epochs": 1}}}
    began = time.perf_counter()
    async with aiohttp.ClientSession(raise_for_status=True) as client:
        job = await _submit_job(client, side.endpoint, job_input)
        output = await _wait_for_output(client, side.endpoint, job)
        trained_s = time.perf_counter() - began
        adapter = output[0]["fine_tune"]["fine_tuned_model"]
        await answer_text(client, side, adapter)
    answered_s = time.perf_counter() - began
    return Round({"fine-tune": {"trained_s": trained_s, "answered_s": answered_s}})


async def _submit_job(client: aiohttp.ClientSession, endpoint: str, job_input: Any) -> str:
    policy = {"executionTimeout": 3_600_000}
    body = {"input": job_input, "policy": policy}
    async with client.post(f"{endpoint}/run", json=body) as response:
        return str((await response.json())["id"])


async def _job_status(client: aiohttp.ClientSession, endpoint: str, job: str) -> dict[str, Any]:
    """Return the status of a job.

    Raises:
        Lost: If the job has failed.
    """
    async with client.get(f"{endpoint}/status/{job}") as response:
        status: dict[str, Any] = await response.json()
    if status["status"] not in ("IN_QUEUE", "IN_PROGRESS", "COMPLETED"):
        raise Lost(f"a job is {status['status']}: {status.get('error')}")
    return status


async def _wait_for_output(client: aiohttp.ClientSession, endpoint: str, job: str) -> Any:
    """Return the output of a job when it has completed; raise as ``_job_status`` does."""
    while (status := await _job_status(client, endpoint, job))["status"] != "COMPLETED":  # noqa: ASYNC110 - another process runs it
        await asyncio.sleep(POLL_S)
    return status["output"]


def _kill_worker(platform: int) -> None:
    """Kill the worker and all its processes, as if its machine were lost."""
    for process in psutil.Process(platform).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if not is_resource_tracker(process):
                process.kill()
