"""The log in JSON: every line of a worker's whole life is one object, whoever prints it."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.engine.requests import ENDLESS
from support.hub.downloads import NAME, PREFETCH, TOKEN, environ, hub_with
from support.processes.background import wait_until
from support.processes.commands import SCRIPT, WORKER, run
from support.processes.emulated_endpoint import EndpointFactory
from support.processes.forked import forked, run_forked

from emulator import Status

pytestmark = pytest.mark.usefixtures("demo_model")

SETTINGS = {"LOG_FORMAT": "json", "HF_TOKEN": TOKEN, "MAX_ENGINE_RESTARTS": "0"}
# Nothing is taken from there: the start ends before.
PLATFORM = {"RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take/$ID?x=1"}


def objects(text: str) -> list[dict[str, Any]]:
    """Return the lines of a log, which must all be objects, and hold no secret."""
    assert TOKEN not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    return lines


async def test_every_line_from_the_start_to_the_death_of_the_engine_is_an_object(
    started_endpoint: EndpointFactory,
) -> None:
    async with started_endpoint(**SETTINGS, DISABLE_LOG_REQUESTS="0") as endpoint:
        assert await endpoint.answers()
        assert (await endpoint.run({"prompt": "Hi", "strem": True})).status is Status.FAILED
        long = endpoint.submit({"prompt": "Hi", "sampling_params": ENDLESS, "stream": True})
        await anext(long.follow())
        os.kill(endpoint.core_pid(), signal.SIGKILL)
        assert await asyncio.to_thread(endpoint.worker.ended) == 1
        log = objects(endpoint.logged)
    messages = [line["message"] for line in log]
    # Of the worker, vLLM, its core and the SDK.
    assert any(message.startswith("start-up: warm-up") for message in messages)
    assert any("Added request" in message for message in messages)
    assert any(message.startswith("(EngineCore pid=") for message in messages)
    assert any("requestId" in line for line in log)
    # Of an accepted job, a refused one and one that the engine's death has ended.
    assert {200, 400, 503} == {line["status"] for line in log if line.get("job")}
    (ends,) = [line for line in log if line["level"] == "CRITICAL"]
    assert ends["message"].startswith("the engine died")


def test_wrong_settings_are_one_object() -> None:
    wrong = {"MAX_CONCURRENCY": "0", "DEFAULT_BATCH_SIZE": "x", "MAX_MODEL_LEN": "x"}
    environ = {**WORKER, **PLATFORM, **SETTINGS, **wrong, "ANSWER_FAILED_START": "0"}
    refused = run_forked(environ, SCRIPT)
    assert refused.returncode == 1
    assert objects(refused.stdout) == []
    last = objects(refused.stderr)[-1]
    assert last["level"] == "CRITICAL"
    assert last["message"].startswith("3 settings are wrong")
    assert all(f"{name} = " in last["message"] for name in wrong)


def test_a_local_run_prints_its_answer_as_in_text() -> None:
    # A sampled text may be empty, or have several lines.
    params = {"structured_outputs": {"choice": ["one line"]}}
    job = {"prompt": "Hi", "sampling_params": params}
    ran = run_forked({**WORKER, **SETTINGS}, SCRIPT, "--test_input", json.dumps({"input": job}))
    assert ran.returncode == 0, ran.stderr
    chunk, _, joined = ran.stdout.splitlines()
    assert json.loads(chunk)["choices"][0]["tokens"] == [joined]
    assert any(line["message"].startswith("start-up: ") for line in objects(ran.stderr))


def test_a_signal_during_a_start_leaves_objects_only_and_no_process(tmp_path: Path) -> None:
    with forked([SCRIPT], {**WORKER, **PLATFORM, **SETTINGS}, tmp_path / "log") as worker:
        worker.wait_for_output("start-up: weights")
        worker.process.terminate()
        assert worker.ended() == 128 + signal.SIGTERM
        wait_until(lambda: not worker.session())
        objects(worker.output)


def test_what_a_downloading_child_prints_is_objects(source: Path, tmp_path: Path) -> None:
    with hub_with(source) as served:
        ran = run(environ(served, tmp_path, LOG_FORMAT="json"), *PREFETCH)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    log = objects(ran.stderr)
    assert "worker.store.download.meter: " in "".join(line["message"] for line in log)
    assert log[-1]["message"].startswith(f"found: {NAME} downloaded")
