"""`src/handler.py --serve` with the official client: one server for all of it."""

import urllib.request
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from support.processes.background import HUNG_S, wait_until
from support.processes.http_worker import KEY, HttpWorker

ASKED = "What does this worker do?"
BEGINS = "This worker turns a Hugging Face model into a serverless endpoint."


@pytest.fixture
def client(server: HttpWorker) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as connected:
        yield connected


def asked(content: str) -> list[openai.types.chat.ChatCompletionMessageParam]:
    return [{"role": "user", "content": content}]


def test_the_official_client_gets_an_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="demo", messages=asked(ASKED), temperature=0)
    assert answer.choices[0].message.content is not None
    assert answer.choices[0].message.content.startswith(BEGINS)


def test_the_official_client_gets_a_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo", messages=asked(ASKED), temperature=0, stream=True
    )
    texts = [event.choices[0].delta.content or "" for event in stream]
    assert "".join(texts).startswith(BEGINS)


def test_errors_are_those_that_the_official_client_knows(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-none", messages=asked("Hi"))
    assert "gpt-none" in unknown.value.message
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="demo", messages=asked("Hi"), max_tokens=-1)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-other").models.list()


def test_ping_needs_no_key(server: HttpWorker) -> None:
    with urllib.request.urlopen(f"{server.url}/ping", timeout=HUNG_S) as answer:
        assert answer.status == 200


def test_metrics_are_text_that_prometheus_reads(server: HttpWorker) -> None:
    request = urllib.request.Request(f"{server.url}/metrics", headers={"x-api-key": KEY})
    with urllib.request.urlopen(request, timeout=HUNG_S) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"vllm:" in answer.read()


def test_the_log_has_a_line_a_request_and_no_body(client: OpenAI, server: HttpWorker) -> None:
    client.chat.completions.create(model="demo", messages=asked("a canary"), max_tokens=1)
    log = server.output
    assert '"POST /v1/chat/completions HTTP/1.1" 200' in log
    assert "a canary" not in log
    assert KEY not in log


# The last one: it ends the server.
def test_sigterm_lets_a_running_stream_end_and_the_status_is_0(
    client: OpenAI, server: HttpWorker
) -> None:
    stream = client.chat.completions.create(
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
