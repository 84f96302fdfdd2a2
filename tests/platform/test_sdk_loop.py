"""Test of a worker whose SDK lacks a name, so that the SDK's own loop runs the jobs."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from support import ROOT
from support.engine.requests import ENDLESS
from support.processes.background import HUNG_S
from support.processes.emulated_endpoint import emulated_endpoint

SCRIPT = ROOT / "tests" / "platform" / "handlers" / "missing_name.py"


# This test starts a worker of its own. contract/test_sdk.py tests the choice of the loop.
@pytest.mark.slow
async def test_the_sdks_own_loop_runs_the_jobs_until_the_engine_dies(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = {**worker_environ, "MAX_ENGINE_RESTARTS": "0"}
    async with emulated_endpoint(environ, tmp_path / "log", command=[SCRIPT]) as endpoint:
        assert "no runpod.http_client:AsyncClientSession, so its own loop" in endpoint.log
        assert "Jobs in queue: 1" in endpoint.log
        assert await endpoint.answers_jobs()
        job = endpoint.submit({"prompt": "Hi", "sampling_params": ENDLESS, "stream": True})
        assert await job.changed.wait_for(lambda: bool(job.chunks), HUNG_S)
        os.kill(endpoint.core_pid(), signal.SIGKILL)
        assert await asyncio.to_thread(endpoint.worker.wait_for_exit) == 1
        error = json.loads(job.error or "")["error"]
        assert (error["code"], error["retryable"]) == (503, True)
        assert "the engine died" in endpoint.log.splitlines()[-1]
