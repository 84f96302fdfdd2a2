"""The costs of jobs, of requests over HTTP, and of the part of a start before vLLM is imported.

The worker, the engine and the receiver of the posts share one event loop, and the engine continues
only when a chunk has arrived. So every run executes the same lines.
"""

import asyncio
import contextlib
import io
import json
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from aiohttp import ClientSession
from support import ROOT
from support.costs import Cost, check_costs, count_cost
from support.engine.scripted import (
    CHAT,
    PROMPT_TOKENS,
    ScriptedEngine,
    Step,
    chat_job,
    raw_job,
    settings,
    worker,
)
from support.processes.background import HUNG_S
from support.processes.commands import HOME, run_command
from support.serve_client import HELLO

from job_loop import PlatformClient
from job_loop.delivery import Delivery
from job_loop.wire import PlatformUrls
from worker.engine import Delta
from worker.record import JobRecord
from worker.serve.service import WorkerApp

TOKENS = 200
WARM_UP = 20
# Tokens in each chunk of a raw job.
RAW_CHUNK = 10
HEAD_END = b"\r\n\r\n"
ACCEPTED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

SETTINGS = {
    "MODEL_NAME": "org/model",
    "MAX_MODEL_LEN": "4096",
    "GPU_MEMORY_UTILIZATION": "0.9",
    "ENABLE_AUTO_TOOL_CHOICE": "1",
    "TOOL_CALL_PARSER": "hermes",
    "DEFAULT_BATCH_SIZE": "20",
}

# Answers something with a number of tokens, and returns its cost.
Run = Callable[[int], Awaitable[Cost]]


@contextlib.contextmanager
def log_to_one_handler() -> Iterator[None]:
    """Write the records of jobs as in production, without handlers of pytest and other tests."""
    logger = logging.getLogger("worker")
    before = logger.level, logger.propagate, logger.handlers
    logger.setLevel(logging.INFO)
    logger.propagate, logger.handlers = False, [logging.StreamHandler(io.StringIO())]
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers = before[1:]


class PacedEngine(ScriptedEngine):
    """Runs on the caller's loop, and generates the tokens of a chunk after ``release``."""

    def __init__(self, count: int, chunk: int = 1) -> None:
        gates = [asyncio.Event() for _ in range(count // chunk - 1)]
        steps: list[Step] = []
        for number in range(1, count + 1):
            reason = "stop" if number == count else None
            steps.append(Delta(0, "word ", 1, PROMPT_TOKENS, finish_reason=reason))
            if number % chunk == 0 and number < count:
                steps.append(gates[number // chunk - 1])
        super().__init__(*steps)
        self.loop.close()
        self.loop = asyncio.get_running_loop()
        self._waiting = iter(gates)

    def release(self) -> None:
        if gate := next(self._waiting, None):
            gate.set()


@asynccontextmanager
async def open_platform() -> AsyncIterator[PlatformClient]:
    """Yield a client of a platform that accepts all posts."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(HEAD_END)
                await reader.readexactly(int(head.rpartition(b":")[2]))
                writer.write(ACCEPTED)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        urls = PlatformUrls(f"{url}/take?", f"{url}/stream/$ID?gpu=A", f"{url}/done/$ID?gpu=A")
        async with PlatformClient(urls, ClientSession) as client:
            yield client


async def run_job(payload: dict[str, Any], engine: PacedEngine, **environ: str) -> Cost:
    """Answer a job as ``JobLoop`` does."""
    job, handler = {"id": "job-1", "input": payload}, worker(engine, **environ)
    async with open_platform() as client:
        # Opens the connection.
        await Delivery(client, JobRecord("job-0")).post_result()
        with count_cost() as cost:
            record = JobRecord.from_job(job)
            delivery = Delivery(client, record)
            async for chunk in handler.handle(job, record):
                await delivery.add(chunk)
                engine.release()
            await delivery.post_result()
            record.write_to_log()
    assert record.status == 200
    return cost


async def request(body: dict[str, Any], engine: PacedEngine) -> Cost:
    """Send a chat to the app of ``--serve``, without a socket."""
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)
        engine.release()

    app = WorkerApp(engine.engines, settings())
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers}
    with count_cost() as cost:
        await app(scope, receive, send)
    assert sent[0]["status"] == 200
    return cost


async def streamed_chat(count: int) -> Cost:
    return await run_job(chat_job(stream=True), PacedEngine(count))


async def decoded_chat(count: int) -> Cost:
    return await run_job(chat_job(stream=True), PacedEngine(count), RAW_OPENAI_OUTPUT="0")


async def whole_chat(count: int) -> Cost:
    return await run_job(chat_job(stream=False), PacedEngine(count, chunk=count))


async def raw_stream(count: int) -> Cost:
    return await run_job(raw_job(stream=True), PacedEngine(count, chunk=RAW_CHUNK))


async def streamed_request(count: int) -> Cost:
    return await request({**HELLO, "stream": True}, PacedEngine(count))


async def whole_request(count: int) -> Cost:
    return await request(HELLO, PacedEngine(count, chunk=count))


def run(answer: Run, count: int) -> Cost:
    async def run_in_time() -> Cost:
        async with asyncio.timeout(HUNG_S):
            await answer(WARM_UP)
            return await answer(count)

    with log_to_one_handler(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_in_time())


def cost_of_one_more(whole: Cost, half: Cost, count: int) -> Cost:
    """Return the cost of one of the chunks by which two streams differ."""
    return {unit: round((whole[unit] - half[unit]) / count, 1) for unit in whole}


@pytest.mark.parametrize(
    ("name", "answer", "more", "chunk"),
    [
        ("streamed chat", streamed_chat, "one more chunk of a chat", 1),
        ("decoded chat", decoded_chat, "one more chunk of a decoded chat", 1),
        ("whole chat", whole_chat, None, 1),
        ("streamed raw job", raw_stream, "one more chunk of a raw job", RAW_CHUNK),
        ("streamed chat over HTTP", streamed_request, "one more event over HTTP", 1),
        ("whole chat over HTTP", whole_request, None, 1),
    ],
    ids=[
        "streamed-chat",
        "decoded-chat",
        "whole-chat",
        "streamed-raw-job",
        "streamed-request",
        "whole-request",
    ],
)
def test_an_answer_costs_as_much_as_before(
    name: str, answer: Run, more: str | None, chunk: int
) -> None:
    found = {name: run(answer, TOKENS)}
    if more:
        half = run(answer, TOKENS // 2)
        found[more] = cost_of_one_more(found[name], half, TOKENS // 2 // chunk)
    check_costs(found)


START = """
import sys, handler
modules = len(sys.modules)
import json
from support.costs import count_cost
from worker.engine.start import Start
from worker.settings.sources import gather_settings
environ = json.loads(sys.argv[1])
Start.read(gather_settings(environ))
with count_cost() as cost: start = Start.read(gather_settings(environ))
print(json.dumps({"entry point": {"modules": modules}, "settings of a start": cost}))
assert not start.mistakes, start.mistakes
"""


def test_a_start_costs_as_much_as_before_until_vllm_is_imported() -> None:
    # Without the variables of a measured coverage, which would import modules.
    environ = {"PATH": HOME["PATH"], "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"}
    result = run_command(environ, sys.executable, "-c", START, json.dumps(SETTINGS))
    assert result.returncode == 0, result
    check_costs(json.loads(result.stdout))
