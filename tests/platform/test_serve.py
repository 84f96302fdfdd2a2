"""Tests of `src/handler.py --serve` with one server until SIGTERM."""

import os
import signal
from pathlib import Path

import httpx
import openai
import pytest
from openai import OpenAI
from support.processes.background import HUNG_S, wait_until
from support.processes.commands import SCRIPT
from support.processes.servers import KEY, ServerProcess, start_server

QUESTION = "What does this worker do?"


def user_messages(content: str) -> list[openai.types.chat.ChatCompletionMessageParam]:
    return [{"role": "user", "content": content}]


def ping(server: ServerProcess) -> int:
    """Send a ping without a key."""
    return httpx.get(f"{server.url}/ping", timeout=HUNG_S).status_code


def test_metrics_are_in_the_text_format_of_prometheus(server: ServerProcess) -> None:
    answer = httpx.get(f"{server.url}/metrics", headers={"x-api-key": KEY}, timeout=HUNG_S)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "vllm:" in answer.text


def test_the_log_has_one_line_per_request_without_bodies_and_keys(
    serve_client: OpenAI, server: ServerProcess
) -> None:
    serve_client.chat.completions.create(
        model="demo", messages=user_messages("a canary"), max_tokens=1
    )
    url = f"{server.url}/v1/models?key={KEY}"
    assert httpx.get(url, timeout=HUNG_S).status_code == 401
    assert '"POST /v1/chat/completions HTTP/1.1" 200' in server.output
    # The query may contain a signature.
    assert '"GET /v1/models HTTP/1.1" 401' in server.output
    assert "a canary" not in server.output
    assert KEY not in server.output


# A restarted engine imports vLLM again. unit/serve tests the answer to a ping, and
# model/test_starts.py a restart.
@pytest.mark.slow
def test_ping_reports_a_dead_engine_until_it_is_restarted(server: ServerProcess) -> None:
    (core,) = server.core_pids()
    os.kill(core, signal.SIGKILL)
    wait_until(lambda: ping(server) == 503)
    wait_until(lambda: ping(server) == 200)


# This test must be the last one, because it stops the server.
def test_sigterm_lets_a_running_stream_finish_and_the_worker_exits_with_0(
    serve_client: OpenAI, server: ServerProcess
) -> None:
    stream = serve_client.chat.completions.create(
        model="demo",
        messages=user_messages(QUESTION),
        max_tokens=600,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    first = next(stream)
    server.process.terminate()
    events = [first, *stream]
    assert events[-1].choices[0].finish_reason == "length"
    assert server.wait_for_exit() == 0
    # The kernel needs some time to remove the engine's core.
    wait_until(lambda: not server.session_pids())


def test_the_sdks_own_test_api_answers_a_job(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    job = {"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 3, "ignore_eos": True}}}
    command = (SCRIPT, "--rp_serve_api", "--rp_api_port", "0")
    with start_server(command, worker_environ, tmp_path / "log") as worker:
        answer = httpx.post(f"{worker.url}/runsync", json=job, timeout=HUNG_S).json()
    assert answer["status"] == "COMPLETED"
    assert answer["output"][-1]["usage"]["output"] == 3
