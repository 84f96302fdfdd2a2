"""Tests that no log, response, command line or environment of a worker contains a secret."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from support.engine.requests import ENDLESS
from support.hub.downloads import NAME, TRICKLE_RATE, hub_with, worker_environ
from support.hub.server import MEMBER
from support.processes.background import BackgroundProcess, start_command, wait_until
from support.processes.commands import HANDLER, WORKER
from support.processes.emulated_endpoint import emulated_endpoint

from emulator import Status

pytestmark = pytest.mark.usefixtures("demo_model")

SECRETS = {
    "HF_TOKEN": "hf_canarycanary1",
    "RUNPOD_AI_API_KEY": "canary-canary-2",
    "RUNPOD_API_KEY": "canary-canary-3",
    "SERVE_API_KEY": "canary-canary-4",
    "HUGGING_FACE_HUB_TOKEN": "hf_canarycanary1",
}
DEBUG_LOGS = {
    "RUNPOD_LOG_LEVEL": "DEBUG",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "RUNPOD_PING_INTERVAL": "1000",
}
# /proc shows the initial environment of a process, so the worker is started as in a container, and
# not as a fork.
ENVIRON = {**WORKER, **DEBUG_LOGS, **SECRETS}


def read_processes(worker: BackgroundProcess) -> list[str]:
    """Return the environments and command lines of a worker's processes, as visible in /proc."""
    processes = []
    for pid in worker.session_pids():
        # The process may have just exited.
        with suppress(OSError):
            place = Path(f"/proc/{pid}")
            processes.append((place / "environ").read_text("latin-1") + "\0")
            processes[-1] += (place / "cmdline").read_text("latin-1")
    return processes


def assert_no_secret(worker: BackgroundProcess, *, least: int) -> None:
    processes = read_processes(worker)
    assert len(processes) >= least, processes
    assert all("canary" not in text for text in processes)
    assert "canary" not in worker.output


@pytest.mark.slow
def test_a_server_exposes_no_secret_while_its_engine_starts(tmp_path: Path) -> None:
    command = [*HANDLER, "--serve", "--port", "0"]
    with start_command(command, ENVIRON, tmp_path / "log") as worker:
        wait_until(lambda: worker.core_pids() or worker.process.poll() is not None)
        assert_no_secret(worker, least=3)


# This test imports vLLM, and each restarted core imports it again.
@pytest.mark.slow
async def test_a_worker_with_debug_logs_exposes_no_secret(tmp_path: Path) -> None:
    settings = {"LOG_FORMAT": "text", "DISABLE_LOG_REQUESTS": "0", "MAX_ENGINE_RESTARTS": "1"}
    log = tmp_path / "log"
    async with emulated_endpoint({**ENVIRON, **settings}, log, command=HANDLER) as endpoint:
        wrong = {"prompt": "Hi", "sampling_params": {"temperature": "x"}}
        chat = {"openai_route": "/v1/chat/completions", "openai_input": {"messages": 5}}
        status = {"openai_route": "/chat", "openai_input": None}
        for job_input in (wrong, chat, status):
            job = await endpoint.run(job_input)
            assert "canary" not in json.dumps([job.output, job.error])
        assert endpoint.emulator.queue.get_worker("worker-1").pings  # pings contain the key
        long = endpoint.submit({"prompt": "Hi", "sampling_params": ENDLESS, "stream": True})
        await anext(long.follow_chunks())
        # The worker, the core and the process for pings.
        assert_no_secret(endpoint.worker, least=3)
        os.kill(endpoint.core_pid(), signal.SIGKILL)
        assert await endpoint.answers_jobs()
        # This core is a new process instead of a fork, with its own environment.
        assert_no_secret(endpoint.worker, least=3)
        os.kill(endpoint.core_pid(), signal.SIGKILL)
        assert await asyncio.to_thread(endpoint.worker.wait_for_exit) == 1
        assert long.status is Status.FAILED
        assert "canary" not in endpoint.log + (long.error or "")


def test_the_download_process_gets_its_token_only_from_its_parent(
    tmp_path: Path, demo_model: Path
) -> None:
    with hub_with(demo_model) as hub:
        hub.repositories[NAME].gated = True
        settings = {**worker_environ(hub, tmp_path), "HF_TOKEN": MEMBER, "LOG_FORMAT": "text"}
        hub.throttle = TRICKLE_RATE
        with start_command([*HANDLER, "--prefetch"], settings, tmp_path / "log") as worker:
            wait_until(lambda: hub.sent_ranges or worker.process.poll() is not None)
            processes = read_processes(worker)
            assert len(processes) >= 2, worker.output
            assert all(MEMBER not in text for text in processes)
