"""Secrets are in no log, answer, command line or environment of a worker's whole life."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from support.engine.requests import ENDLESS
from support.hub.downloads import HARDLY, NAME, environ, hub_with
from support.hub.server import MEMBER
from support.processes.background import Background, background, wait_until
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
LOUD = {"RUNPOD_LOG_LEVEL": "DEBUG", "VLLM_LOGGING_LEVEL": "DEBUG", "RUNPOD_PING_INTERVAL": "1000"}
# As a container is started, whose environment its memory shows: nothing is forked.
ENVIRON = {**WORKER, **LOUD, **SECRETS}


def processes(worker: Background) -> list[str]:
    """Return what others see of each process of a worker: its environment and command line."""
    seen = []
    for pid in worker.session():
        # It may have just ended.
        with suppress(OSError):
            place = Path(f"/proc/{pid}")
            seen.append((place / "environ").read_text("latin-1") + "\0")
            seen[-1] += (place / "cmdline").read_text("latin-1")
    return seen


def assert_unseen(worker: Background, *, least: int) -> None:
    seen = processes(worker)
    assert len(seen) >= least, seen
    assert all("canary" not in shown for shown in seen)
    assert "canary" not in worker.output


def test_a_server_shows_its_secrets_nowhere_while_its_engine_starts(tmp_path: Path) -> None:
    command = [*HANDLER, "--serve", "--port", "0"]
    with background(command, ENVIRON, tmp_path / "log") as worker:
        wait_until(lambda: worker.cores() or worker.process.poll() is not None)
        assert_unseen(worker, least=3)


# A start that imports vLLM, and another one with each death of the core.
@pytest.mark.slow
async def test_a_worker_at_its_loudest_shows_no_secret(tmp_path: Path) -> None:
    loud = {"LOG_FORMAT": "text", "DISABLE_LOG_REQUESTS": "0", "MAX_ENGINE_RESTARTS": "1"}
    log = tmp_path / "log"
    async with emulated_endpoint({**ENVIRON, **loud}, log, command=HANDLER) as endpoint:
        wrong = {"prompt": "Hi", "sampling_params": {"temperature": "x"}}
        chat = {"openai_route": "/v1/chat/completions", "openai_input": {"messages": 5}}
        status = {"openai_route": "/chat", "openai_input": None}
        for job_input in (wrong, chat, status):
            job = await endpoint.run(job_input)
            assert "canary" not in json.dumps([job.output, job.error])
        assert endpoint.emulator.queue.worker("worker-1").pings  # they carry the key
        long = endpoint.submit({"prompt": "Hi", "sampling_params": ENDLESS, "stream": True})
        await anext(long.follow())
        # The worker, the core and the pings.
        assert_unseen(endpoint.worker, least=3)
        os.kill(endpoint.core_pid(), signal.SIGKILL)
        assert await endpoint.answers()
        # This core has begun as a new process, with an environment of its own.
        assert_unseen(endpoint.worker, least=3)
        os.kill(endpoint.core_pid(), signal.SIGKILL)
        assert await asyncio.to_thread(endpoint.worker.ended) == 1
        assert long.status is Status.FAILED
        assert "canary" not in endpoint.logged + (long.error or "")


def test_the_download_has_its_token_from_its_parent_alone(tmp_path: Path, demo_model: Path) -> None:
    with hub_with(demo_model) as hub:
        hub.repositories[NAME].gated = True
        given = {**environ(hub, tmp_path), "HF_TOKEN": MEMBER, "LOG_FORMAT": "text"}
        hub.throttle = HARDLY
        with background([*HANDLER, "--prefetch"], given, tmp_path / "log") as worker:
            wait_until(lambda: hub.sent or worker.process.poll() is not None)
            seen = processes(worker)
            assert len(seen) >= 2, worker.output
            assert all(MEMBER not in shown for shown in seen)
