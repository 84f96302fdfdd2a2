"""The official clients of OpenAI and RunPod, unchanged, against `make endpoint`."""

import asyncio
import os
import subprocess
from typing import Any

import aiohttp
import openai
import pytest
import runpod
from openai.types.chat import ChatCompletionUserMessageParam
from support.engine.requests import ENDLESS
from support.processes.local_endpoint import LocalEndpoint

from emulator import Emulator, Options

ANSWER = "This worker turns a Hugging Face model into a serverless endpoint."
QUESTION: list[ChatCompletionUserMessageParam] = [
    {"role": "user", "content": "What does this worker do?"}
]
CHAT: dict[str, Any] = {"model": "demo", "messages": QUESTION, "temperature": 0}
LONG: dict[str, Any] = {
    **{name: ENDLESS[name] for name in ("max_tokens", "n")},
    "temperature": 1,
    "extra_body": {"ignore_eos": True},
}
RAW: dict[str, Any] = {
    "messages": QUESTION,
    "sampling_params": {"temperature": 0, "max_tokens": 200},
    "stream": True,
}


def test_the_printed_examples_work_as_they_are_pasted(make_endpoint: LocalEndpoint) -> None:
    examples = make_endpoint.examples
    assert examples.count("\n# ") == 4
    environ = {name: os.environ[name] for name in ("PATH", "HOME")}
    pasted = subprocess.run(
        ["bash", "-e"], input=examples, env=environ, capture_output=True, text=True, check=False
    )
    assert (pasted.returncode, pasted.stderr) == (0, "")
    # The texts are sampled. What curl prints of the raw form has no line feed behind it.
    raw, rest = pasted.stdout.split("}data: ", 1)
    _, texts = rest.split("data: [DONE]\n\n")
    text, outputs = texts.rstrip().rsplit("\n", 1)
    assert '"status": "COMPLETED"' in raw
    assert text.strip()
    assert outputs.startswith("[{'choices': ")


class TestOpenAI:
    """The `openai` package."""

    def test_it_lists_the_models(self, client: openai.OpenAI) -> None:
        names = [model.id for model in client.models.list()]
        assert names[:3] == ["demo", "tiny/demo", "minilm"]

    def test_it_chats(self, client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(**CHAT)
        assert (whole.choices[0].message.content or "").startswith(ANSWER)

    def test_it_streams_a_chat(self, client: openai.OpenAI) -> None:
        stream = client.chat.completions.create(**CHAT, stream=True)
        texts = [event.choices[0].delta.content or "" for event in stream]
        assert "".join(texts).startswith(ANSWER)

    def test_it_streams_a_completion(self, client: openai.OpenAI) -> None:
        body: dict[str, Any] = {"model": "demo", "prompt": "Once", "temperature": 0}
        whole = client.completions.create(**body)
        stream = client.completions.create(**body, stream=True)
        assert "".join(event.choices[0].text for event in stream) == whole.choices[0].text

    async def test_its_asyncio_client_streams_several_chats_at_once(
        self, async_client: openai.AsyncOpenAI
    ) -> None:
        async def chat() -> str:
            stream = await async_client.chat.completions.create(**CHAT, stream=True)
            return "".join([event.choices[0].delta.content or "" async for event in stream])

        first, *others = await asyncio.gather(*(chat() for _ in range(4)))
        assert first.startswith(ANSWER)
        assert others == [first] * 3

    def test_an_unknown_model_is_not_found(self, client: openai.OpenAI) -> None:
        with pytest.raises(
            openai.NotFoundError, match="There is no model or adapter 'nope'"
        ) as refused:
            client.chat.completions.create(**{**CHAT, "model": "nope"})
        assert refused.value.type == "NotFoundError"

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_bad_value_is_a_bad_request(self, client: openai.OpenAI, stream: bool) -> None:
        with pytest.raises(openai.BadRequestError, match="at least 1"):
            client.chat.completions.create(**CHAT, max_tokens=-1, stream=stream)

    def test_the_raw_response_is_there(self, client: openai.OpenAI) -> None:
        raw = client.chat.completions.with_raw_response.create(**CHAT)
        assert raw.status_code == 200
        assert raw.headers["content-type"].startswith("application/json")
        assert (raw.parse().choices[0].message.content or "").startswith(ANSWER)

    def test_a_time_out_is_its_own_exception_tried_again_and_cancels_the_jobs(
        self, make_endpoint: LocalEndpoint, client: openai.OpenAI
    ) -> None:
        before = {job["id"] for job in make_endpoint.control("jobs")["jobs"]}
        # Seconds in which also a busy machine begins with a job.
        hasty = client.with_options(timeout=5, max_retries=1)
        with pytest.raises(openai.APITimeoutError):
            hasty.chat.completions.create(**{**CHAT, **LONG})
        # The next job is served once the engine is rid of them.
        assert client.chat.completions.create(**CHAT, max_tokens=2).usage
        jobs = make_endpoint.control("jobs")["jobs"]
        statuses = [job["status"] for job in jobs if job["id"] not in before]
        assert statuses == ["CANCELLED", "CANCELLED", "COMPLETED"]

    async def test_a_wrong_key_is_an_authentication_error(self) -> None:
        async with Emulator(Options(api_key="right")) as emulator:
            url = emulator.openai_url
            async with openai.AsyncOpenAI(base_url=url, api_key="wrong") as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()


class TestRunPod:
    """The `runpod` package."""

    @pytest.fixture(autouse=True)
    def _base_url(self, make_endpoint: LocalEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runpod, "endpoint_url_base", make_endpoint.api_url)

    @pytest.fixture
    def endpoint(self) -> runpod.Endpoint:
        return runpod.Endpoint("local", api_key="any")

    def test_it_runs_a_job_and_reads_its_stream_status_and_output(
        self, endpoint: runpod.Endpoint
    ) -> None:
        job = endpoint.run(RAW)
        streamed = list(job.stream())
        assert text(streamed).startswith(ANSWER)
        assert job.status() == "COMPLETED"
        assert job.output() == streamed

    def test_it_runs_a_job_and_waits_for_the_output(self, endpoint: runpod.Endpoint) -> None:
        assert text(endpoint.run_sync(RAW)).startswith(ANSWER)

    def test_it_cancels_a_job(self, endpoint: runpod.Endpoint) -> None:
        job = endpoint.run({"prompt": "Hi", "sampling_params": ENDLESS})
        assert job.cancel()["status"] == "CANCELLED"
        assert job.status() == "CANCELLED"

    def test_it_asks_for_the_health_and_purges_the_queue(self, endpoint: runpod.Endpoint) -> None:
        health = endpoint.health()
        assert health["workers"]["idle"] + health["workers"]["running"] == 1
        assert health["jobs"]["completed"] > 0
        assert endpoint.purge_queue() == {"removed": 0, "status": "completed"}

    async def test_its_asyncio_client_does_the_same(self) -> None:
        async with aiohttp.ClientSession() as session:
            endpoint = runpod.AsyncioEndpoint("local", session, api_key="any")
            job = await endpoint.run(RAW)
            streamed = [chunk async for chunk in job.stream()]
            assert text(streamed).startswith(ANSWER)
            assert await job.status() == "COMPLETED"
            assert await job.output(timeout=60) == streamed
            assert (await endpoint.health())["workers"]["unhealthy"] == 0
            assert (await job.cancel())["status"] == "COMPLETED"  # too late


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(token for chunk in chunks for token in chunk["choices"][0]["tokens"])
