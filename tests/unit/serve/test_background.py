"""Batches that a server runs in the background: new batches, and unfinished batches at startup."""

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.batches import line, lines, results, to_jsonl
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine, settings
from support.processes.background import poll_until
from support.serve_client import HELLO, client_of

from worker.batches.record import Batch
from worker.batches.store import Batches
from worker.dialects.openai import objects
from worker.errors import EngineDead
from worker.long_work.kinds import WorkReference
from worker.serve.background import BackgroundWork
from worker.serve.service import WorkerApp

A, B = WorkReference("batch", "batch_a"), WorkReference("batch", "batch_b")


@contextlib.asynccontextmanager
async def run_lifespan(app: Any) -> AsyncIterator[None]:
    """Keep an app between its startup and its shutdown, as an ASGI server does."""
    events, answers = asyncio.Queue[Any](), asyncio.Queue[Any]()
    task = asyncio.create_task(app({"type": "lifespan"}, events.get, answers.put))
    events.put_nowait({"type": "lifespan.startup"})
    assert await answers.get() == {"type": "lifespan.startup.complete"}
    yield
    events.put_nowait({"type": "lifespan.shutdown"})
    assert await answers.get() == {"type": "lifespan.shutdown.complete"}
    await task


@contextlib.asynccontextmanager
async def start_service(engine: ScriptedEngine, **environ: str) -> AsyncIterator[httpx.AsyncClient]:
    service = WorkerApp(engine.engines, settings(**environ))
    async with run_lifespan(service), client_of(service) as http_client:
        yield http_client


async def create_batch(caller: Caller) -> Batch:
    """Create a batch of three lines without running it."""
    batches = Batches(caller.settings)
    file = batches.files.receive([to_jsonl(lines(3))], filename="a", purpose="batch")
    response = await caller.post("/v1/batches", input_file_id=file.id, endpoint=CHAT)
    return batches.get(response["id"])


async def test_a_batch_created_over_http_runs(tmp_path: Path, engine: ScriptedEngine) -> None:
    # The jobs of a server have no time limit.
    environ = {"FILES_PATH": str(tmp_path), "EXECUTION_TIMEOUT_S": "1"}
    async with start_service(engine, **environ) as http_client:
        file = {"file": ("a.jsonl", to_jsonl([*lines(20), line("wrong", messages=5)]))}
        uploaded = await http_client.post("/v1/files", data={"purpose": "batch"}, files=file)
        body = {"input_file_id": uploaded.json()["id"], "endpoint": CHAT}
        batch = (await http_client.post("/v1/batches", json=body)).json()
        assert "run_with" not in batch
        await poll_until(Batch(tmp_path / "worker" / "batches" / batch["id"]).has_ended)
        batch = (await http_client.get(f"/v1/batches/{batch['id']}")).json()
    assert batch["request_counts"] == {"total": 21, "completed": 20, "failed": 1}
    output, errors = results(tmp_path, batch)
    assert (len(output), list(errors)) == (20, ["wrong"])


async def test_unfinished_batches_are_continued_at_startup(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    caller = Caller(engine, tmp_path)
    await caller.run_job(batch={"requests": lines(2), "endpoint": CHAT})
    batches = [await create_batch(caller) for _ in range(2)]
    async with start_service(engine, FILES_PATH=str(tmp_path)):
        for batch in batches:
            await poll_until(batch.has_ended)
    assert [len(results(tmp_path, objects.batch(batch))[0]) for batch in batches] == [3, 3]
    # The finished batch was not run again.
    assert len(engine.requests) == 2 + 3 + 3


async def test_a_server_without_a_volume_answers_chats(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    async with start_service(engine, BASE_PATH=str(tmp_path / "none")) as http_client:
        assert (await http_client.post(CHAT, json=HELLO)).status_code == 200
        assert (await http_client.get("/v1/batches")).status_code == 507


async def test_a_batch_that_stops_is_logged_and_can_be_started_again(
    tmp_path: Path,
    engine: ScriptedEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.batches.shard.RETRY_DELAYS_S", (0.01,))
    with ScriptedEngine(EngineDead()) as broken_engine:
        batch = await create_batch(Caller(broken_engine, tmp_path))
        async with start_service(broken_engine, FILES_PATH=str(tmp_path)):
            await poll_until(lambda: f"batch {batch.id} stops" in caplog.text)
    assert not batch.has_ended()
    assert [record.levelno for record in caplog.records if "stops" in record.getMessage()] == [
        logging.ERROR
    ]
    async with start_service(engine, FILES_PATH=str(tmp_path)):
        await poll_until(batch.has_ended)
    assert batch.counts().completed == 3


class FakeWorker:
    """A worker that records its jobs, which run until ``go`` is set."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.go = asyncio.Event()
        self.answer: dict[str, Any] = {"batch": {}}
        self.background = BackgroundWork()

    async def handle(self, job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        self.received.append(job)
        await self.go.wait()
        yield self.answer

    def list_unfinished_work(self) -> list[WorkReference]:
        return []

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        worker: Any = self
        await self.background.handle_lifespan(worker, receive, send)

    async def wait_until_idle(self) -> None:
        await poll_until(lambda: not self.background._running)


@pytest.fixture
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> FakeWorker:
    monkeypatch.setattr("worker.serve.background.PAUSE_S", 0.01)
    return FakeWorker()


async def test_work_that_is_started_again_while_it_runs_is_run_once_more(
    fake_worker: FakeWorker,
) -> None:
    # Nothing is started before the server has started.
    assert not await fake_worker.background.start_work(A)
    async with run_lifespan(fake_worker):
        for _ in range(3):
            assert await fake_worker.background.start_work(A)
        assert await fake_worker.background.start_work(B)
        await poll_until(lambda: len(fake_worker.received) == 2)
        fake_worker.go.set()
        # The running job may have been about to end because of a pause that is now over.
        await poll_until(lambda: len(fake_worker.received) == 3)
        await fake_worker.wait_until_idle()
        assert await fake_worker.background.start_work(A)
        await poll_until(lambda: len(fake_worker.received) == 4)
    inputs = [job["input"] for job in fake_worker.received]
    assert inputs == [{"batch": {"id": f"batch_{letter}"}} for letter in "abaa"]
    assert len({job["id"] for job in fake_worker.received}) == 4


async def test_a_batch_can_be_started_from_another_loop(fake_worker: FakeWorker) -> None:
    fake_worker.go.set()
    returned: list[bool] = []
    async with run_lifespan(fake_worker):
        start = fake_worker.background.start_work
        thread = threading.Thread(target=lambda: returned.append(asyncio.run(start(A))))
        thread.start()
        await poll_until(lambda: len(fake_worker.received) == 1)
        thread.join()
    assert returned == [True]


@pytest.mark.parametrize(
    ("retryable", "code", "continues"), [(True, 503, True), (False, 507, True), (False, 404, False)]
)
async def test_a_batch_continues_only_after_temporary_errors(
    fake_worker: FakeWorker, retryable: bool, code: int, continues: bool
) -> None:
    error = {"message": "a", "retryable": retryable, "code": code}
    fake_worker.answer = {"error": json.dumps({"error": error})}
    fake_worker.go.set()
    async with run_lifespan(fake_worker):
        await fake_worker.background.start_work(A)
        await poll_until(lambda: len(fake_worker.received) > 2 * continues)
        if continues:
            fake_worker.answer = {"batch": {}}
        await fake_worker.wait_until_idle()
    assert (len(fake_worker.received) > 1) == continues
