"""A batch whose worker is killed, on workers that the local platform starts again."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import psutil

from proof.machine.features import POLL_S, job_status, submit_job, wait_for_output
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
    first_token,
    free_port,
    worker_settings,
)

CHAT = "/v1/chat/completions"
INPUT = "inbox/requests.jsonl"


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
        job = await submit_job(client, endpoint, job_input)
        done = 0
        while done < lines / 2:
            status = await job_status(client, endpoint, job)
            if status["status"] == "COMPLETED":
                raise Lost("the batch ended before its worker could be killed")
            done = max(done, (status.get("output") or {}).get("done", 0))
            await asyncio.sleep(POLL_S)
        killed = time.perf_counter()
        _kill_worker(side.process.pid)
        output = await wait_for_output(client, endpoint, job)
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


def _kill_worker(platform: int) -> None:
    """Kill the worker and all its processes, as if its machine were lost."""
    for process in psutil.Process(platform).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if not is_resource_tracker(process):
                process.kill()
