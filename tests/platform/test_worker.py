"""Tests of the worker as the platform runs it: responses to callers, logs, cancels and exit."""

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from demo_model import DIALOGUES
from support.engine.requests import ENDLESS
from support.engine.scripted import settings
from support.metrics import Push, Receiver, otlp_receiver
from support.processes.background import HUNG_S, poll_until
from support.processes.emulated_endpoint import EmulatedEndpoint, emulated_endpoint
from support.processes.scripted_worker import full_gpu_environ

from emulator import Job, Status
from emulator.faults import faults_that_delay_posts
from worker.doctor import missing_key_note

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
GREEDY = {"temperature": 0, "max_tokens": 400}
TURNS = [turn for dialogue in DIALOGUES if not dialogue.tools for turn in dialogue.turns]
# Maximum number of tokens that a delayed stream splits; more tokens are sent as one text.
MAX_SPLIT_TOKENS = 256
CANARY = "canary-in-a-prompt"
TOKEN = "hf_canaryincredential"
PUSH_HEADER = "canary-of-the-receiver"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(
    worker_environ: dict[str, str], receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EmulatedEndpoint]:
    folder = tmp_path_factory.mktemp("worker")
    environ = {
        **worker_environ,
        # The SDK's check of GPUs would end this worker.
        **full_gpu_environ(folder),
        "HF_TOKEN": TOKEN,
        "MAX_MODEL_LEN": "1024",
        "FILES_PATH": str(tmp_path_factory.mktemp("volume")),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={PUSH_HEADER}",
    }
    async with emulated_endpoint(environ, folder / "log") as running:
        yield running


CHAT_BODY = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 30,
    "ignore_eos": True,
}
COUNTED_JOBS: list[dict[str, Any]] = [
    {"prompt": "Hi", "sampling_params": {"max_tokens": 40, "ignore_eos": True}, "stream": True},
    {"openai_route": CHAT, "openai_input": CHAT_BODY},
    {"openai_route": "/v1/nothing"},
]
COUNTERS = {
    "taken": "worker_jobs_taken_total",
    "finished": "worker_jobs_finished_total",
    "chunks": "worker_chunks_total",
    "first tokens": "worker_first_token_seconds",
    "tokens": "vllm:generation_tokens_total",
}


# This test must be the first one, because it counts all jobs since the start.
@pytest.mark.slow
async def test_the_counters_of_the_worker_and_of_its_engine_are_pushed_after_the_last_job(
    endpoint: EmulatedEndpoint, receiver: Receiver
) -> None:
    def counters(push: Push) -> dict[str, float]:
        return {name: push.value(metric) for name, metric in COUNTERS.items()}

    async def wait_for_finished(count: float) -> dict[str, float]:
        await poll_until(lambda: counters(receiver.pushes[-1])["finished"] >= count)
        return counters(receiver.pushes[-1])

    await poll_until(lambda: receiver.pushes)
    assert counters(receiver.pushes[0])["taken"] == 0
    before = await wait_for_finished(1)
    jobs = await asyncio.gather(*(endpoint.run(job) for job in COUNTED_JOBS * 5))
    assert [job.status for job in jobs] == [Status.COMPLETED, Status.COMPLETED, Status.FAILED] * 5
    now = await wait_for_finished(before["finished"] + len(jobs))
    assert {name: count - before[name] for name, count in now.items()} == {
        "taken": len(jobs),
        "finished": len(jobs),
        "chunks": sum(len(job.output or []) for job in jobs),
        "first tokens": 5,
        "tokens": 5 * (40 + 30),
    }
    last = receiver.pushes[-1]
    assert last.resource["service.instance.id"] == "worker-1"
    assert last.headers["x-key"] == PUSH_HEADER
    assert PUSH_HEADER not in endpoint.log


def texts(job: Job) -> list[str]:
    """Return the complete text of each choice."""
    assert job.status is Status.COMPLETED, job.error
    choices = zip(*(chunk["choices"] for chunk in job.output), strict=True)
    return ["".join(text for part in parts for text in part["tokens"]) for parts in choices]


def openai_text(job: Job) -> str:
    if isinstance(job.output[0], dict):
        return str(job.output[0]["choices"][0]["message"]["content"])
    lines = "".join(job.output).split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line[-1:] == "}"]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


async def test_mixed_jobs_at_concurrency_32_get_their_own_answers(
    endpoint: EmulatedEndpoint,
) -> None:
    slots = asyncio.Semaphore(32)
    # Token counts of each turn's answers, which must be equal.
    counts: list[set[int]] = [set() for _ in TURNS]

    async def check(number: int) -> None:
        turn = number % len(TURNS)
        messages, expected = TURNS[turn]
        stream = number % 2 == 0
        raw = {"messages": messages, "sampling_params": GREEDY, "stream": stream}
        body = {"messages": messages, **GREEDY, "stream": stream}
        async with slots:
            if number % 4 < 2:
                job = await endpoint.run(raw)
                assert texts(job) == [expected]
                generated = job.output[-1]["usage"]["output"]
                counts[turn].add(generated)
                if stream:
                    token_count = sum(len(chunk["choices"][0]["tokens"]) for chunk in job.output)
                    assert token_count == generated or token_count < MAX_SPLIT_TOKENS < generated
            else:
                job = await endpoint.run({"openai_route": CHAT, "openai_input": body})
                assert openai_text(job) == expected
        assert [chunk.output for chunk in job.chunks] == (job.output if stream else [])

    # Each form of a job asks for each turn twice.
    await asyncio.gather(*(check(number) for number in range(2 * 4 * len(TURNS))))
    assert {len(distinct) for distinct in counts} == {1}


async def test_a_list_of_prompts_is_one_job_that_reports_its_progress(
    endpoint: EmulatedEndpoint,
) -> None:
    params = [{"max_tokens": 1}, *[ENDLESS] * 39]
    prompts = {"prompts": ["Once"] * 40, "use_tqdm": True}
    job = endpoint.submit({**prompts, "sampling_params": params})
    first_progress = {"done": 1, "total": 40}
    assert await job.changed.wait_for(lambda: job.progress == first_progress, HUNG_S)
    endpoint.emulator.queue.cancel(job)


async def test_no_prompt_no_answer_and_no_credential_is_logged(endpoint: EmulatedEndpoint) -> None:
    text = f"What does this worker do? {CANARY}"
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": text},
        # vLLM ignores this key and logs a warning.
        {"role": "user", "content": [{"type": "text", "content": text}]},
        {"role": "wizard", "content": [{"type": "text", "content": text}]},
    ]
    for turn in turns:
        for value in (20, -1, "many"):
            body = {"messages": [turn], "max_tokens": value}
            await endpoint.run({"openai_route": CHAT, "openai_input": body})
            params = {"max_tokens": value}
            await endpoint.run({"messages": [turn], "sampling_params": params})
    log = endpoint.log
    assert "route=/v1/chat/completions status=200" in log
    for secret in (CANARY, TOKEN, "Hugging Face model into", "Traceback"):
        assert secret not in log


async def test_the_log_of_the_startup_has_phases_a_summary_and_the_automatic_choices(
    endpoint: EmulatedEndpoint,
) -> None:
    phases = re.findall(r"start-up: (\S+) +\d+\.\d\d s", endpoint.log)
    expected = ["import", "settings", "fetch", "weights", "engine", "app", "warm-up", "sdk"]
    assert Counter(phases) == Counter(expected)
    # A generated token replaces the SDK's own checks.
    assert "Running 1 fitness check(s)" in endpoint.log
    # model/test_engine.py tests the content of these lines.
    assert re.search(r"model: demo; from: .*; KV cache: \d+ tokens; ", endpoint.log)
    assert "RUNPOD_LOG_LEVEL=INFO (the SDK's own DEBUG prints every answer)" in endpoint.log
    # The worker has a volume, and no key to send jobs with.
    assert endpoint.log.count(f"{missing_key_note(settings(FILES_PATH='/any'))}\n") == 1


async def test_statistics_and_requests_are_counted_but_not_logged_by_default(
    endpoint: EmulatedEndpoint,
) -> None:
    await endpoint.run({"prompt": "Hi"})
    metrics = (await endpoint.run({"openai_route": "/metrics"})).output[0]
    (count,) = re.findall(r'request_success_total\{.*finished_reason="length".*\} (\S+)', metrics)
    assert float(count) >= 1
    # The metrics of vLLM's HTTP server, which is not used, would stay 0.
    assert "http_" not in metrics
    for line in ("throughput", "Added request", "Received request"):
        assert line not in endpoint.log


# Cancelled jobs:


RUNNING = "vllm:num_requests_running"
ENDED_BY_LENGTH = 'finished_reason="length"'


async def read_metric(endpoint: EmulatedEndpoint, metric: str) -> float:
    """Return the value of one of vLLM's metrics."""
    lines = (await endpoint.run({"openai_route": "/metrics"})).output[0].splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if metric in line and not line.startswith("#")
    )


async def wait_until_generating(endpoint: EmulatedEndpoint) -> None:
    """Wait until the engine generates all choices of a job."""
    async with asyncio.timeout(HUNG_S):
        while await read_metric(endpoint, RUNNING) < ENDLESS["n"]:
            await asyncio.sleep(0.05)


OPENAI = {"messages": [{"role": "user", "content": "Hi"}], **ENDLESS}


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": "Hi", "sampling_params": ENDLESS, "stream": True},
        {"openai_route": CHAT, "openai_input": OPENAI},
    ],
    ids=["a raw stream", "an OpenAI answer"],
)
async def test_a_cancelled_job_frees_its_slots_in_the_engine(
    endpoint: EmulatedEndpoint, payload: dict[str, Any]
) -> None:
    before = await read_metric(endpoint, ENDED_BY_LENGTH)
    # If there is a POST, the cancel reaches the SDK during the POST, and the generator is dropped.
    for fault in faults_that_delay_posts(2 * HUNG_S):
        endpoint.emulator.faults.add(fault)
    job = endpoint.submit(payload)
    if "stream" in payload:
        assert await job.changed.wait_for(lambda: bool(job.chunks), HUNG_S)
    endpoint.emulator.faults.clear()
    await wait_until_generating(endpoint)
    assert job.status is Status.IN_PROGRESS
    endpoint.emulator.queue.cancel(job)
    finished_jobs = 0
    async with asyncio.timeout(HUNG_S):
        while await read_metric(endpoint, RUNNING):
            # The engine updates its metrics only with a step, so it needs a request.
            short = await endpoint.run({"prompt": "Hi", "sampling_params": {"max_tokens": 2}})
            assert short.status is Status.COMPLETED
            finished_jobs += 1
    assert await read_metric(endpoint, ENDED_BY_LENGTH) - before <= finished_jobs, (
        "some ran to their end"
    )


# This test must be the last one, because it stops the worker.
async def test_sigterm_stops_a_worker_gracefully(endpoint: EmulatedEndpoint) -> None:
    # If the worker stopped the engine first, it would wait five seconds for the suspended core.
    os.kill(endpoint.worker.core_pids()[0], signal.SIGSTOP)
    signalled = time.monotonic()
    endpoint.worker.process.terminate()
    assert await asyncio.to_thread(endpoint.worker.wait_for_exit) == 0
    assert time.monotonic() - signalled < 4
    assert "SIGTERM: taking no more jobs" in endpoint.log
