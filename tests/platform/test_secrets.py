"""Secrets are in no log, answer, command line or environment of a worker's whole life."""

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.engine.requests import ENDLESS
from support.hub.downloads import HARDLY, NAME, environ, hub_with
from support.hub.server import MEMBER
from support.processes.background import Background, background, wait_until
from support.processes.commands import HANDLER, WORKER
from support.processes.emulated_endpoint import EmulatedEndpoint

from emulator import Emulator, Options, Status

SECRETS = {
    "HF_TOKEN": "hf_canarycanary1",
    "RUNPOD_AI_API_KEY": "canary-canary-2",
    "RUNPOD_API_KEY": "canary-canary-3",
    "SERVE_API_KEY": "canary-canary-4",
    "HUGGING_FACE_HUB_TOKEN": "hf_canarycanary1",
}
LOUD = {"RUNPOD_LOG_LEVEL": "DEBUG", "VLLM_LOGGING_LEVEL": "DEBUG", "RUNPOD_PING_INTERVAL": "1000"}


def processes(worker: Background) -> dict[int, str]:
    """Return what others see of each process of a worker: its environment and command line."""
    seen = {}
    for pid in worker.session():
        try:
            place = Path(f"/proc/{pid}")
            seen[pid] = "\0".join((place / file).read_text("latin-1") for file in SHOWN)
        except OSError:
            continue  # it has just ended
    return seen


SHOWN = ("environ", "cmdline")


@contextmanager
def watched(environ: dict[str, str], log: Path, *options: str) -> Iterator[Background]:
    """Start a worker as a container does: what it is started with is what its memory shows."""
    with background([*HANDLER, *options], {**WORKER, **LOUD, **SECRETS, **environ}, log) as worker:
        yield worker


def assert_unseen(worker: Background, *, least: int) -> None:
    seen = processes(worker)
    assert len(seen) >= least, seen
    assert all("canary" not in shown for shown in seen.values())
    assert "canary" not in worker.output


@pytest.mark.slow
@pytest.mark.parametrize(("log_format", "restarts"), [("text", 1), ("json", 0)])
async def test_a_worker_at_its_loudest_shows_no_secret(
    demo_model: Path, tmp_path: Path, log_format: str, restarts: int
) -> None:
    async with Emulator(Options(take_poll_s=1)) as emulator:
        platform = {**emulator.worker_environ(), **SECRETS, "LOG_FORMAT": log_format}
        platform |= {"DISABLE_LOG_REQUESTS": "0", "MAX_ENGINE_RESTARTS": str(restarts)}
        with watched(platform, tmp_path / "log") as worker:
            endpoint = EmulatedEndpoint(emulator, worker)
            assert await endpoint.answers()
            wrong = {"prompt": "Hi", "sampling_params": {"temperature": "x"}}
            chat = {"openai_route": "/v1/chat/completions", "openai_input": {"messages": 5}}
            status = {"openai_route": "/chat", "openai_input": None}
            for job_input in (wrong, chat, status):
                job = await endpoint.run(job_input)
                assert "canary" not in json.dumps([job.output, job.error])
            assert emulator.queue.worker("worker-1").pings  # they carry the key
            long = endpoint.submit({"prompt": "Hi", "sampling_params": ENDLESS, "stream": True})
            await anext(long.follow())
            # The worker, the core and the pings.
            assert_unseen(worker, least=3)
            for _ in range(restarts):
                os.kill(endpoint.core_pid(), signal.SIGKILL)
                assert await endpoint.answers()
                # This core has begun as a new process, with an environment of its own.
                assert_unseen(worker, least=3)
            os.kill(endpoint.core_pid(), signal.SIGKILL)
            assert await asyncio.to_thread(worker.ended) == 1
            assert long.status is Status.FAILED
            assert "canary" not in worker.output + (long.error or "")


def test_a_server_asks_for_its_key_and_shows_it_nowhere(demo_model: Path, tmp_path: Path) -> None:
    with watched({}, tmp_path / "log", "--serve", "--port", "0") as worker:
        worker.wait_for_output("Uvicorn running on ")
        address = worker.output.split("Uvicorn running on ")[1].split()[0]
        url = f"{address}/v1/models?key={SECRETS['SERVE_API_KEY']}"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url)
        key = {"Authorization": f"Bearer {SECRETS['SERVE_API_KEY']}"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=key)) as answer:
            assert answer.status == 200
        assert "/v1/models?key=***" in worker.output
        assert_unseen(worker, least=2)


def test_wrong_settings_are_told_without_a_secret(tmp_path: Path) -> None:
    wrong = {"MAX_CONCURRENCY": SECRETS["HF_TOKEN"], "SEED": SECRETS["SERVE_API_KEY"]}
    with watched(wrong, tmp_path / "log") as worker:
        assert worker.ended() == 1
        assert "MAX_CONCURRENCY = '***'" in worker.output
        assert "canary" not in worker.output


def test_the_download_has_its_token_from_its_parent_alone(tmp_path: Path, demo_model: Path) -> None:
    with hub_with(demo_model) as hub:
        hub.repositories[NAME].gated = True
        given = {**environ(hub, tmp_path), "HF_TOKEN": MEMBER, "LOG_FORMAT": "text"}
        hub.throttle = HARDLY
        with background([*HANDLER, "--prefetch"], given, tmp_path / "log") as worker:
            wait_until(lambda: hub.sent or worker.process.poll() is not None)
            seen = processes(worker)
            assert len(seen) >= 2, worker.output
            assert all(MEMBER not in shown for shown in seen.values())
            worker.kill()
