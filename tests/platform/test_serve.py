"""`src/handler.py --serve`: one server for all of it, to SIGTERM."""

import os
import signal
from pathlib import Path

import httpx
import openai
from openai import OpenAI
from support.processes.background import HUNG_S, wait_until
from support.processes.commands import SCRIPT
from support.processes.http_worker import KEY, Served, served

ASKED = "What does this worker do?"


def asked(content: str) -> list[openai.types.chat.ChatCompletionMessageParam]:
    return [{"role": "user", "content": content}]


def ping(server: Served) -> int:
    """Ping without a key."""
    return httpx.get(f"{server.url}/ping", timeout=HUNG_S).status_code


def test_the_official_client_gets_an_answer_whole_and_streamed(serve_client: OpenAI) -> None:
    create = serve_client.chat.completions.create
    answer = create(model="demo", messages=asked(ASKED), temperature=0).choices[0].message.content
    assert str(answer).startswith("This worker turns a Hugging Face model into")
    stream = create(model="demo", messages=asked(ASKED), temperature=0, stream=True)
    assert "".join(event.choices[0].delta.content or "" for event in stream) == answer


def test_metrics_are_text_that_prometheus_reads(server: Served) -> None:
    answer = httpx.get(f"{server.url}/metrics", headers={"x-api-key": KEY}, timeout=HUNG_S)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "vllm:" in answer.text


def test_the_log_has_a_line_a_request_and_neither_a_body_nor_a_key(
    serve_client: OpenAI, server: Served
) -> None:
    serve_client.chat.completions.create(model="demo", messages=asked("a canary"), max_tokens=1)
    url = f"{server.url}/v1/models?key={KEY}"
    assert httpx.get(url, timeout=HUNG_S).status_code == 401
    assert '"POST /v1/chat/completions HTTP/1.1" 200' in server.output
    assert "/v1/models?key=***" in server.output
    assert "a canary" not in server.output
    assert KEY not in server.output


def test_a_worker_whose_engine_died_says_so_until_another_is_there(server: Served) -> None:
    (core,) = server.cores()
    os.kill(core, signal.SIGKILL)
    wait_until(lambda: ping(server) == 503)
    wait_until(lambda: ping(server) == 200)


# The last one: it ends the server.
def test_sigterm_lets_a_running_stream_end_and_the_status_is_0(
    serve_client: OpenAI, server: Served
) -> None:
    stream = serve_client.chat.completions.create(
        model="demo",
        messages=asked(ASKED),
        max_tokens=600,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    first = next(stream)
    server.process.terminate()
    events = [first, *stream]
    assert events[-1].choices[0].finish_reason == "length"
    assert server.ended() == 0
    # No process of its session is left, once the kernel has taken the engine's core apart.
    wait_until(lambda: not server.session())


def test_the_sdks_own_test_api_answers_a_job(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    job = {"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 3, "ignore_eos": True}}}
    command = (SCRIPT, "--rp_serve_api", "--rp_api_port", "0")
    with served(command, worker_environ, tmp_path / "log") as worker:
        answer = httpx.post(f"{worker.url}/runsync", json=job, timeout=HUNG_S).json()
    assert answer["status"] == "COMPLETED"
    assert answer["output"][-1]["usage"]["output"] == 3
