"""Long work without jobs: new work of a server, and unfinished work of the volume."""

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.batches import line, lines, results, to_jsonl
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine, settings, tokens
from support.processes.background import poll_until
from support.serve_client import HELLO, client_of

from worker.background import MAX_TAKEN_UP, BackgroundWork
from worker.batches.record import Batch, Batches
from worker.dialects.openai.batches import batch_object
from worker.errors import EngineDead, VolumeError
from worker.long_work.job_list import OrphanedWork
from worker.long_work.records import WorkReference
from worker.routes.resources import StartWork
from worker.serve.service import WorkerApp

A, B = WorkReference("batch", "batch_a"), WorkReference("batch", "batch_b")


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """An engine that answers "a"."""
    with ScriptedEngine(*tokens("a")) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _take_up_new_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take up work that a job may be about to run, too."""
    monkeypatch.setattr("worker.long_work.job_list.EXPECTED_S", -1.0)


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


async def create_batch(caller: Caller, count: int = 3) -> Batch:
    """Create a batch of some lines without running it."""
    batches = Batches(caller.settings)
    file = batches.files.receive([to_jsonl(lines(count))], filename="a", purpose="batch")
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
    assert [len(results(tmp_path, batch_object(batch))[0]) for batch in batches] == [3, 3]
    # The finished batch was not run again.
    assert len(engine.requests) == 2 + 3 + 3


async def test_two_workers_that_see_the_same_orphan_run_it_once(
    tmp_path: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.background.LOOK_S", 0.01)
    with ScriptedEngine(*tokens("a", "b", pause=0.01)) as slow_engine:
        batch = await create_batch(Caller(slow_engine, tmp_path), 200)
        workers = [Caller(each, tmp_path).worker for each in (engine, slow_engine)]
        backgrounds = [BackgroundWork(worker) for worker in workers]
        runs = [asyncio.create_task(background.run()) for background in backgrounds]
        await poll_until(batch.has_ended)
        for background in backgrounds:
            background.stop()
        await asyncio.gather(*runs)
        counts = sorted(len(each.requests) for each in (engine, slow_engine))
    assert counts == [0, 200]
    assert len(results(tmp_path, batch_object(batch))[0]) == 200


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
    monkeypatch.setattr("worker.batches.run.RETRY_DELAYS_S", (0.01,))
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
        self.orphans: list[OrphanedWork] = []
        self.looks = 0

    async def handle(self, job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        self.received.append(job)
        await self.go.wait()
        yield self.answer

    def list_orphans(self) -> list[OrphanedWork]:
        self.looks += 1
        return self.orphans

    @property
    def started_ids(self) -> list[str]:
        return [job["input"]["batch"]["id"] for job in self.received]

    @contextlib.asynccontextmanager
    async def run_background(
        self, send_job: StartWork | None = None, *, is_server: bool = True
    ) -> AsyncIterator[BackgroundWork]:
        worker: Any = self
        background = BackgroundWork(worker, send_job, is_server=is_server)
        # Nothing is started before.
        assert not await background.start_work(A)
        task = asyncio.create_task(background.run())
        await poll_until(lambda: self.looks > 0)
        yield background
        self.go.set()
        background.stop()
        await task


@pytest.fixture
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> FakeWorker:
    monkeypatch.setattr("worker.background.PAUSE_S", 0.01)
    return FakeWorker()


async def test_work_that_is_started_again_while_it_runs_is_run_once_more(
    fake_worker: FakeWorker,
) -> None:
    async with fake_worker.run_background() as background:
        for _ in range(3):
            assert await background.start_work(A)
        assert await background.start_work(B)
        await poll_until(lambda: len(fake_worker.received) == 2)
        fake_worker.go.set()
        # The running job may have been about to end because of a pause that is now over.
        await poll_until(lambda: len(fake_worker.received) == 3)
        await poll_until(lambda: not background._running)
        assert await background.start_work(A)
        await poll_until(lambda: len(fake_worker.received) == 4)
    inputs = [job["input"] for job in fake_worker.received]
    assert inputs == [{"batch": {"id": f"batch_{letter}"}} for letter in "abaa"]
    assert len({job["id"] for job in fake_worker.received}) == 4


async def test_a_batch_can_be_started_from_another_loop(fake_worker: FakeWorker) -> None:
    returned: list[bool] = []
    async with fake_worker.run_background() as background:
        start = background.start_work
        thread = threading.Thread(target=lambda: returned.append(asyncio.run(start(A))))
        thread.start()
        await poll_until(lambda: len(fake_worker.received) == 1)
        thread.join()
    assert returned == [True]


async def test_orphans_are_taken_up_once_each_as_soon_as_there_is_space(
    fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.background.LOOK_S", 0.01)
    works = [WorkReference("batch", f"batch_{number}") for number in range(MAX_TAKEN_UP + 2)]
    fake_worker.orphans = [OrphanedWork(work, has_job=False) for work in works]
    async with fake_worker.run_background(is_server=False) as background:
        looks = fake_worker.looks
        await poll_until(lambda: fake_worker.looks > looks + 3)
        assert fake_worker.started_ids == [work.id for work in works[:MAX_TAKEN_UP]]
        assert fake_worker.received[0]["input"]["batch"]["background"]
        monkeypatch.setattr("worker.background.LOOK_S", 3600.0)
        fake_worker.orphans = fake_worker.orphans[MAX_TAKEN_UP:]
        fake_worker.go.set()
        await poll_until(lambda: len(set(fake_worker.started_ids)) == len(works))
        fake_worker.orphans = []
        await poll_until(lambda: not background._running)


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_worker_that_can_send_jobs_sends_one_for_an_orphan_without_a_job(
    fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    monkeypatch.setattr("worker.background.LOOK_S", 0.01)
    monkeypatch.setattr("worker.background.PAUSE_S", 3600.0)
    fake_worker.orphans = [OrphanedWork(A, has_job=False), OrphanedWork(B, has_job=True)]
    sent: list[WorkReference] = []

    async def send(work: WorkReference) -> bool:
        sent.append(work)
        return is_sent

    async with fake_worker.run_background(send, is_server=False):
        await poll_until(lambda: fake_worker.looks > 4)
        # Until the job is taken, no other is sent. If none can be sent, the worker itself runs it.
        assert sent == [A]
        assert set(fake_worker.started_ids) == ({B.id} if is_sent else {A.id, B.id})


async def test_a_look_that_fails_does_not_end_the_worker(
    fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.background.LOOK_S", 0.01)
    errors = [VolumeError("gone"), RuntimeError("a defect")]

    def fail_twice() -> list[OrphanedWork]:
        fake_worker.looks += 1
        if errors:
            raise errors.pop()
        return [OrphanedWork(A, has_job=False)]

    monkeypatch.setattr(fake_worker, "list_orphans", fail_twice)
    async with fake_worker.run_background():
        await poll_until(lambda: fake_worker.received)
    assert "a defect" in caplog.text


@pytest.mark.parametrize(
    ("retryable", "code", "continues"), [(True, 503, True), (False, 507, True), (False, 404, False)]
)
async def test_a_batch_continues_only_after_temporary_errors(
    fake_worker: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    retryable: bool,
    code: int,
    continues: bool,
) -> None:
    error = {"message": "a", "retryable": retryable, "code": code}
    fake_worker.answer = {"error": json.dumps({"error": error})}
    fake_worker.go.set()
    fake_worker.orphans = [OrphanedWork(A, has_job=False)]
    monkeypatch.setattr("worker.background.LOOK_S", 0.01)
    async with fake_worker.run_background() as background:
        await poll_until(lambda: len(fake_worker.received) > 2 * continues)
        if continues:
            fake_worker.answer = {"batch": {}}
        else:
            # The worker does not take up work again that it can't run.
            await poll_until(lambda: fake_worker.looks > 3)
        fake_worker.orphans = []
        await poll_until(lambda: not background._running)
    assert (len(fake_worker.received) > 1) == continues
