"""OpenAI's routes that create, list, describe and cancel batches."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from support.batches import lines, results, to_jsonl
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine, tokens
from support.processes.background import HUNG_S, poll_until
from support.volume import all_records

from worker.batches.record import Batches
from worker.files import Files
from worker.long_work.records import WorkReference
from worker.routes.kinds import KINDS
from worker.routes.vllm import BATCH_PATHS

BATCHES = "/v1/batches"


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller of a worker that can start batches."""
    return Caller(engine, tmp_path, True)


def make_body(caller: Caller, **changes: Any) -> dict[str, Any]:
    """Return a valid body with some changes; None removes a key."""
    files = Files.from_settings(caller.settings)
    file = files.receive([to_jsonl(lines(3))], filename="in.jsonl", purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, **changes}
    return {key: value for key, value in body.items() if value is not None}


async def create_batch(caller: Caller, **changes: Any) -> Any:
    return await caller.post(BATCHES, **make_body(caller, **changes))


async def get_batch(caller: Caller, batch: dict[str, Any]) -> Any:
    return await caller.get(f"{BATCHES}/{batch['id']}")


# One value of each kind; tests/unit/job covers the others.
@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"completion_window": "15d"}, "completion_window", "14 days"),
        ({"endpoint": "/score"}, "endpoint", "demo can't answer this route"),
        *(
            ({"endpoint": other}, "endpoint", f"one of {', '.join(BATCH_PATHS)}")
            for other in ("/v1/audio", "/tokenize", f"{CHAT}/../x", f"{CHAT}?a=1", "")
        ),
        ({"endpont": CHAT}, "endpont", "did you mean 'endpoint'"),
        ({"input_file_id": None, "requests": lines(1)}, "input_file_id", "required"),
    ],
)
async def test_an_invalid_batch_is_refused_with_the_field(
    caller: Caller, changes: dict[str, Any], param: str, says: str
) -> None:
    error = await caller.request_error("POST", BATCHES, **make_body(caller, **changes))
    assert (error["code"], error["param"]) == (400, param)
    assert says in error["message"]
    assert (caller.started_work, all_records(Batches(caller.settings))) == ([], [])


async def test_a_new_batch_starts_as_many_jobs_as_its_data_parallelism(caller: Caller) -> None:
    before = int(time.time())
    keys = {"metadata": {"mine": "ä"}, "completion_window": "2h", "endpoint": CHAT}
    batch = await create_batch(caller, data_parallelism=3, **keys)
    assert caller.started_work == [WorkReference("batch", batch["id"])] * 3
    assert await get_batch(caller, batch) == batch
    assert {name: batch[name] for name in keys} == keys
    assert (batch["object"], batch["status"], "run_with" in batch) == ("batch", "validating", False)
    assert before <= batch["created_at"] <= time.time()
    assert batch["expires_at"] == batch["created_at"] + 7_200


@pytest.mark.parametrize(
    "can_start_jobs", [False, None], ids=["start fails", "worker starts no jobs"]
)
async def test_a_batch_that_is_not_started_names_the_job_that_runs_it(
    engine: ScriptedEngine, tmp_path: Path, can_start_jobs: bool | None
) -> None:
    engine.script = tuple(tokens("a"))
    caller = Caller(engine, tmp_path, can_start_jobs)
    response = await create_batch(caller)
    assert response["run_with"] == {"input": {"batch": {"id": response["id"]}}}
    batch = (await caller.run_job(**response["run_with"]["input"]))["batch"]
    assert (batch["id"], batch["status"]) == (response["id"], "completed")
    assert len(results(tmp_path, batch)[0]) == 3


async def test_a_caller_learns_who_runs_a_batch(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()
    engine.script = (release, *tokens("a"))
    caller = Caller(engine, tmp_path)
    created = await create_batch(caller)
    assert created["run_state"] == "queued", "its job is on its way"
    monkeypatch.setattr("worker.long_work.job_list.EXPECTED_S", -1.0)
    run_with = {"run_with": {"input": {"batch": {"id": created["id"]}}}}
    waiting = await get_batch(caller, created)
    assert (waiting["run_state"], waiting["run_with"]) == ("waiting", run_with["run_with"])
    assert (await caller.get(BATCHES))["data"] == [waiting]
    others = [
        asyncio.create_task(caller.run_job(batch={"requests": lines(1), "endpoint": CHAT}))
        for _ in range(KINDS["batch"].places)
    ]
    await poll_until(lambda: len(engine.requests) == len(others))
    job = asyncio.create_task(caller.run_job(**run_with["run_with"]["input"]))
    other = Caller(engine, tmp_path)

    async def state() -> tuple[str, bool]:
        # Another worker on the volume answers the same.
        batch = await get_batch(other, created)
        return batch["run_state"], "run_with" in batch

    async with asyncio.timeout(HUNG_S):
        while await state() != ("queued", False):
            await asyncio.sleep(0.01)
    engine.loop.call_soon_threadsafe(release.set)
    await asyncio.gather(job, *others)
    assert (await get_batch(caller, created))["run_state"] is None


async def test_a_batch_that_runs_without_a_job_still_needs_one(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.long_work.job_list.EXPECTED_S", -1.0)
    release = asyncio.Event()
    engine.script = (release, *tokens("a"))
    caller = Caller(engine, tmp_path)
    created = await create_batch(caller)
    assert [orphan.work.id for orphan in caller.worker.list_orphans()] == [created["id"]]
    job = asyncio.create_task(caller.run_job(batch={"id": created["id"], "background": True}))
    await poll_until(lambda: engine.requests)
    # The platform knows of no job, and may stop the worker.
    batch = await get_batch(caller, created)
    assert (batch["run_state"], "run_with" in batch) == ("running", True)
    assert caller.worker.list_orphans() == []
    # A worker that takes up the same work leaves it to the first one.
    left = await Caller(engine, tmp_path).run_job(batch={"id": created["id"], "background": True})
    assert left["batch"]["status"] == "in_progress"
    engine.loop.call_soon_threadsafe(release.set)
    assert (await job)["batch"]["request_counts"]["completed"] == 3
    error = await caller.job_error(
        batch={"requests": lines(1), "endpoint": CHAT, "background": True}
    )
    assert "only with id" in error["message"]


async def test_a_repeated_job_creates_one_batch_and_another_job_a_second(caller: Caller) -> None:
    body = make_body(caller)
    first, again, other = [
        (await caller.run_job(job, route=BATCHES, method="POST", body=body))["id"]
        for job in ("job-1", "job-1", "job-2")
    ]
    assert first == again != other
    assert len(all_records(Batches(caller.settings))) == 2


@pytest.mark.usefixtures("embedder")
async def test_a_batch_may_use_an_endpoint_of_the_embedder(caller: Caller) -> None:
    assert (await create_batch(caller, endpoint="/v1/embeddings"))["endpoint"] == "/v1/embeddings"
    error = await caller.request_error("POST", BATCHES, **make_body(caller, endpoint="/rerank"))
    assert "demo, minilm can't answer this route" in error["message"]


async def test_pages_have_20_batches_newest_first_even_if_a_query_has_another_order(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ids = time.time(), list[str]()
    for number in range(23):
        monkeypatch.setattr(time, "time", lambda moment=now + number: moment)
        ids.insert(0, (await create_batch(caller))["id"])
    first = await caller.get(BATCHES)
    second = await caller.get(f"{BATCHES}?limit=3&after={first['last_id']}&order=asc")
    pages = [[batch["id"] for batch in page["data"]] for page in (first, second)]
    assert pages == [ids[:20], ids[20:]]
    assert (first["has_more"], second["has_more"]) == (True, False)


async def test_a_batch_without_a_running_job_is_cancelled_immediately(caller: Caller) -> None:
    batch = await create_batch(caller)
    cancelled = await caller.post(f"{BATCHES}/{batch['id']}/cancel")
    assert (cancelled["status"], len(caller.started_work)) == ("cancelled", 1)
    assert cancelled["cancelled_at"] >= cancelled["cancelling_at"] >= batch["created_at"]


async def test_a_batch_with_a_lease_is_cancelled_after_the_lease_ends(caller: Caller) -> None:
    batch = await create_batch(caller)
    leases = Batches(caller.settings).get(batch["id"]).lease_directory("plan")
    leases.mkdir(parents=True)
    (leases / "lease-1").touch()
    cancelling = await caller.post(f"{BATCHES}/{batch['id']}/cancel")
    (leases / "lease-1").unlink()
    statuses = (cancelling["status"], (await get_batch(caller, batch))["status"])
    assert statuses == ("cancelling", "cancelled")
    assert caller.started_work == [WorkReference("batch", batch["id"])] * 2


async def test_a_batch_expires_at_the_end_of_its_completion_window(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await create_batch(caller, completion_window="1h")
    for before, status in ((1, "validating"), (0, "expired")):
        monkeypatch.setattr(time, "time", lambda moment=batch["expires_at"] - before: moment)
        assert (await get_batch(caller, batch))["status"] == status
    assert (await get_batch(caller, batch))["expired_at"] == batch["expires_at"]


async def test_a_finished_batch_cannot_be_cancelled(caller: Caller) -> None:
    caller.engine.script = tuple(tokens("a"))
    batch = (await caller.run_job(batch={"requests": lines(1), "endpoint": CHAT}))["batch"]
    error = await caller.request_error("POST", f"{BATCHES}/{batch['id']}/cancel")
    assert (error["code"], error["retryable"]) == (409, False)
    assert "completed" in error["message"]
    assert await get_batch(caller, batch) == {**batch, "run_state": None}
