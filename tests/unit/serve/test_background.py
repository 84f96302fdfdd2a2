"""Batches of a server run in the background: those that are created, and those that were left."""

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
from support.batches import as_text, line, lines, results
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine, settings
from support.processes.background import eventually
from support.served import HELLO, client_of

from worker.batches.record import Batch
from worker.batches.store import Batches
from worker.dialects.openai import objects
from worker.errors import EngineDead
from worker.long_work.kinds import LongWork
from worker.serve.background import Background
from worker.serve.service import Service

A, B = LongWork("batch", "batch_a"), LongWork("batch", "batch_b")


@contextlib.asynccontextmanager
async def living(app: Any) -> AsyncIterator[None]:
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
async def serving(engine: ScriptedEngine, **environ: str) -> AsyncIterator[httpx.AsyncClient]:
    service = Service(engine.engines, settings(**environ))
    async with living(service), client_of(service) as http_client:
        yield http_client


async def created(caller: Caller) -> Batch:
    """Create a batch of three lines that nobody runs."""
    batches = Batches(caller.settings)
    file = batches.files.receive([as_text(lines(3))], filename="a", purpose="batch")
    made = await caller.post("/v1/batches", input_file_id=file.id, endpoint=CHAT)
    return batches.get(made["id"])


async def test_a_batch_created_over_http_runs(tmp_path: Path, engine: ScriptedEngine) -> None:
    # Nobody ends the jobs of a server for their time.
    environ = {"FILES_PATH": str(tmp_path), "EXECUTION_TIMEOUT_S": "1"}
    async with serving(engine, **environ) as http_client:
        file = {"file": ("a.jsonl", as_text([*lines(20), line("wrong", messages=5)]))}
        uploaded = await http_client.post("/v1/files", data={"purpose": "batch"}, files=file)
        body = {"input_file_id": uploaded.json()["id"], "endpoint": CHAT}
        batch = (await http_client.post("/v1/batches", json=body)).json()
        assert "run_with" not in batch
        await eventually(Batch(tmp_path / "worker" / "batches" / batch["id"]).ended)
        batch = (await http_client.get(f"/v1/batches/{batch['id']}")).json()
    assert batch["request_counts"] == {"total": 21, "completed": 20, "failed": 1}
    output, errors = results(tmp_path, batch)
    assert (len(output), list(errors)) == (20, ["wrong"])


async def test_batches_that_were_left_go_on(tmp_path: Path, engine: ScriptedEngine) -> None:
    caller = Caller(engine, tmp_path)
    await caller.job(batch={"requests": lines(2), "endpoint": CHAT})
    left = [await created(caller) for _ in range(2)]
    async with serving(engine, FILES_PATH=str(tmp_path)):
        for batch in left:
            await eventually(batch.ended)
    assert [len(results(tmp_path, objects.batch(batch))[0]) for batch in left] == [3, 3]
    # The one which had ended was not touched.
    assert len(engine.asked) == 2 + 3 + 3


async def test_a_server_without_a_volume_serves(tmp_path: Path, engine: ScriptedEngine) -> None:
    async with serving(engine, BASE_PATH=str(tmp_path / "none")) as http_client:
        assert (await http_client.post(CHAT, json=HELLO)).status_code == 200
        assert (await http_client.get("/v1/batches")).status_code == 507


async def test_a_batch_that_stops_is_logged_and_can_be_started_again(
    tmp_path: Path,
    engine: ScriptedEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.batches.shard.PAUSES_S", (0.01,))
    with ScriptedEngine(EngineDead()) as broken:
        batch = await created(Caller(broken, tmp_path))
        async with serving(broken, FILES_PATH=str(tmp_path)):
            await eventually(lambda: f"batch {batch.id} stops" in caplog.text)
    assert not batch.ended()
    assert [one.levelno for one in caplog.records if "stops" in one.getMessage()] == [logging.ERROR]
    async with serving(engine, FILES_PATH=str(tmp_path)):
        await eventually(batch.ended)
    assert batch.counts().completed == 3


class Jobs:
    """Stands for the worker: notes the jobs, which last until they are let go."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.go = asyncio.Event()
        self.answer: dict[str, Any] = {"batch": {}}
        self.background = Background()

    async def handle(self, job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        self.taken.append(job)
        await self.go.wait()
        yield self.answer

    def unfinished(self) -> list[LongWork]:
        return []

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        worker: Any = self
        await self.background.live(worker, receive, send)

    async def idle(self) -> None:
        await eventually(lambda: not self.background._running)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setattr("worker.serve.background.PAUSE_S", 0.01)
    return Jobs()


async def test_work_that_is_started_while_it_runs_is_run_once_more(jobs: Jobs) -> None:
    # Before the server has started, nothing is.
    assert not await jobs.background.start(A)
    async with living(jobs):
        for _ in range(3):
            assert await jobs.background.start(A)
        assert await jobs.background.start(B)
        await eventually(lambda: len(jobs.taken) == 2)
        jobs.go.set()
        # It may have been about to end because of a pause that is over now.
        await eventually(lambda: len(jobs.taken) == 3)
        await jobs.idle()
        assert await jobs.background.start(A)
        await eventually(lambda: len(jobs.taken) == 4)
    asked = [job["input"] for job in jobs.taken]
    assert asked == [{"batch": {"id": f"batch_{letter}"}} for letter in "abaa"]
    assert len({job["id"] for job in jobs.taken}) == 4


async def test_a_batch_is_started_from_any_loop(jobs: Jobs) -> None:
    jobs.go.set()
    begun: list[bool] = []
    async with living(jobs):
        start = jobs.background.start
        thread = threading.Thread(target=lambda: begun.append(asyncio.run(start(A))))
        thread.start()
        await eventually(lambda: len(jobs.taken) == 1)
        thread.join()
    assert begun == [True]


@pytest.mark.parametrize(
    ("retryable", "code", "goes_on"), [(True, 503, True), (False, 507, True), (False, 404, False)]
)
async def test_a_batch_goes_on_after_what_may_pass_and_after_nothing_else(
    jobs: Jobs, retryable: bool, code: int, goes_on: bool
) -> None:
    error = {"message": "a", "retryable": retryable, "code": code}
    jobs.answer = {"error": json.dumps({"error": error})}
    jobs.go.set()
    async with living(jobs):
        await jobs.background.start(A)
        await eventually(lambda: len(jobs.taken) > 2 * goes_on)
        if goes_on:
            jobs.answer = {"batch": {}}
        await jobs.idle()
    assert (len(jobs.taken) > 1) == goes_on
