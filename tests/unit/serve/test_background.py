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
from support.batches import answered, as_text, batch_of, line, lines, results, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, settings, tokens, until

from worker.batches.state import Batch
from worker.batches.store import Batches
from worker.errors import EngineDead
from worker.job.long_work import LongWork
from worker.serve.background import Background
from worker.serve.service import Service

A, B = LongWork("batch", "batch_a"), LongWork("batch", "batch_b")
SLOW = tokens("a", "b", pause=0.05)


class Server:
    """A service between its startup and its shutdown."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._said: asyncio.Queue[str] = asyncio.Queue()
        self._answers: asyncio.Queue[str] = asyncio.Queue()

    async def says(self, event: str) -> str:
        self._said.put_nowait(f"lifespan.{event}")
        return await self._answers.get()

    async def live(self) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": await self._said.get()}

        async def send(message: Any) -> None:
            self._answers.put_nowait(message["type"])

        await self._app({"type": "lifespan"}, receive, send)


@contextlib.asynccontextmanager
async def living(app: Any) -> AsyncIterator[None]:
    server = Server(app)
    task = asyncio.create_task(server.live())
    assert await server.says("startup") == "lifespan.startup.complete"
    yield
    assert await server.says("shutdown") == "lifespan.shutdown.complete"
    await task


@contextlib.asynccontextmanager
async def serving(
    root: Path, engine: ScriptedEngine, **environ: str
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve with a volume, from startup to shutdown."""
    service = Service(engine.engines, settings(FILES_PATH=str(root), **environ))
    transport = httpx.ASGITransport(service)
    async with living(service), httpx.AsyncClient(transport=transport, base_url="http://w") as http:
        yield http


async def created(root: Path, engine: ScriptedEngine, count: int = 3) -> Batch:
    """Create a batch that nobody runs."""
    worker = worker_at(root, engine)
    batches = Batches.of(settings(FILES_PATH=str(root)))
    file = batches.files.receive([as_text(lines(count))], filename="a", purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT}
    payload = {"route": "/v1/batches", "method": "POST", "body": body}
    return batches.get((await answered(worker, payload, file.id))["id"])


async def test_a_batch_that_is_created_over_http_runs_by_itself(tmp_path: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        # Nobody ends the jobs of a server for their time.
        async with serving(tmp_path, engine, EXECUTION_TIMEOUT_S="1") as http:
            file = {"file": ("a.jsonl", as_text([*lines(20), line("wrong", messages=5)]))}
            uploaded = await http.post("/v1/files", data={"purpose": "batch"}, files=file)
            body = {"input_file_id": uploaded.json()["id"], "endpoint": CHAT}
            batch = (await http.post("/v1/batches", json=body)).json()
            assert "run_with" not in batch
            assert await until(Batch(tmp_path / "worker" / "batches" / batch["id"]).ended)
            batch = (await http.get(f"/v1/batches/{batch['id']}")).json()
    assert batch["request_counts"] == {"total": 21, "completed": 20, "failed": 1}
    output, errors = results(tmp_path, batch)
    assert (len(output), list(errors)) == (20, ["wrong"])


async def test_batches_that_were_left_go_on_when_the_server_starts(tmp_path: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        ended = await batch_of(worker_at(tmp_path, engine), requests=lines(2), endpoint=CHAT)
        left = [await created(tmp_path, engine) for _ in range(2)]
        async with serving(tmp_path, engine):
            for batch in left:
                assert await until(batch.ended)
    for batch in left:
        assert len(results(tmp_path, batch.shown())[0]) == 3
    # That of the one which had ended was not touched.
    assert len(engine.asked) == 2 + 3 + 3
    assert ended["status"] == "completed"


async def test_a_batch_that_is_left_in_the_middle_is_gone_on_with(tmp_path: Path) -> None:
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 4
        batch = await created(tmp_path, engine, count=200)
        running = asyncio.create_task(
            answered(worker_at(tmp_path, engine), {"batch": {"id": batch.id}}, "job-9")
        )
        assert await until(lambda: len(engine.asked) > 100)
        running.cancel()
        assert await until(lambda: not engine.generating and not batch.held())
        durable, asked = batch.counts().completed, len(engine.asked)
        async with serving(tmp_path, engine):
            assert await until(batch.ended)
    assert len(results(tmp_path, batch.shown())[0]) == 200
    assert len(engine.asked) == asked + 200 - durable


async def test_a_server_without_a_volume_starts_and_serves(tmp_path: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        service = Service(engine.engines, settings(BASE_PATH=str(tmp_path / "none")))
        transport = httpx.ASGITransport(service)
        async with (
            living(service),
            httpx.AsyncClient(transport=transport, base_url="http://w") as http,
        ):
            body = {"messages": [{"role": "user", "content": "Hi"}]}
            assert (await http.post(CHAT, json=body)).status_code == 200
            assert (await http.get("/v1/batches")).status_code == 507


class Jobs:
    """Stands for the worker: notes the jobs, which last until they are let go."""

    def __init__(self, root: Path) -> None:
        self.taken: list[dict[str, Any]] = []
        self.go = asyncio.Event()
        self.answer: dict[str, Any] = {"batch": {}}
        batches = Batches.of(settings(FILES_PATH=str(root)))
        self.background = Background()
        self.background.take(self._handle, lambda: [batch.work for batch in batches.unfinished()])

    async def _handle(self, job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        self.taken.append(job)
        await self.go.wait()
        yield self.answer

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        await self.background.live(receive, send)


async def test_before_the_server_has_started_nothing_is(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    assert not await jobs.background.start(A)
    assert jobs.taken == []


async def test_work_that_is_started_while_it_runs_is_run_once_more_after_its_end(
    tmp_path: Path,
) -> None:
    jobs = Jobs(tmp_path)
    async with living(jobs):
        for _ in range(3):
            assert await jobs.background.start(A)
        assert await jobs.background.start(B)
        assert await until(lambda: len(jobs.taken) == 2)
        jobs.go.set()
        # It may have been about to end because of a pause that is over now.
        assert await until(lambda: len(jobs.taken) == 3)
        await asyncio.sleep(0.01)
        assert await jobs.background.start(A)
        assert await until(lambda: len(jobs.taken) == 4)
    spec = [job["input"] for job in jobs.taken]
    assert spec == [{"batch": {"id": f"batch_{letter}"}} for letter in "abaa"]
    assert len({job["id"] for job in jobs.taken}) == 4


async def test_a_batch_is_started_from_any_loop(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.go.set()
    async with living(jobs):
        begun: list[bool] = []
        thread = threading.Thread(
            target=lambda: begun.append(asyncio.run(jobs.background.start(A)))
        )
        thread.start()
        assert await until(lambda: len(jobs.taken) == 1)
        thread.join()
    assert begun == [True]


async def test_a_batch_that_stops_is_told_in_the_log_and_can_be_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.shard.PAUSES_S", (0.01,))
    with ScriptedEngine(EngineDead()) as engine:
        batch = await created(tmp_path, engine)
        async with serving(tmp_path, engine):
            assert await until(lambda: f"batch {batch.id} stops" in caplog.text)
    assert not batch.ended()
    assert [one.levelno for one in caplog.records if "stops" in one.getMessage()] == [logging.ERROR]
    with ScriptedEngine(*tokens("a")) as healthy:
        async with serving(tmp_path, healthy):
            assert await until(batch.ended)
    assert batch.shown()["request_counts"]["completed"] == 3


@pytest.mark.parametrize(
    ("retryable", "code", "times"), [(True, 503, 3), (False, 507, 3), (False, 404, 1)]
)
async def test_a_batch_goes_on_after_what_may_pass_and_after_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, retryable: bool, code: int, times: int
) -> None:
    monkeypatch.setattr("worker.serve.background.PAUSE_S", 0.01)
    jobs = Jobs(tmp_path)
    error = {"message": "a", "retryable": retryable, "code": code}
    jobs.answer = {"error": json.dumps({"error": error})}
    jobs.go.set()
    async with living(jobs):
        await jobs.background.start(A)
        assert await until(lambda: len(jobs.taken) == times)
        jobs.answer = {"batch": {}}
        await asyncio.sleep(0.1)
    assert len(jobs.taken) >= times
    assert retryable or code == 507 or len(jobs.taken) == 1
