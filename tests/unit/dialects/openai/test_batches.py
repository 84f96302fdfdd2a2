"""OpenAI's routes for batches: what is created, listed, described and cancelled, and by whom."""

import time
from pathlib import Path
from typing import Any

import pytest
from support.batches import as_text, lines, results
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine, tokens

from worker.batches.store import Batches
from worker.files import Files
from worker.long_work.kinds import LongWork
from worker.routes.vllm import BATCH_PATHS

BATCHES = "/v1/batches"


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller of a worker that can start batches."""
    return Caller(engine, tmp_path, True)


def body_of(caller: Caller, **changes: Any) -> dict[str, Any]:
    """Return a request that would be accepted but for the changes; None leaves a key out."""
    files = Files.of(caller.settings)
    file = files.receive([as_text(lines(3))], filename="in.jsonl", purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, **changes}
    return {key: value for key, value in body.items() if value is not None}


async def created(caller: Caller, **changes: Any) -> Any:
    return await caller.post(BATCHES, **body_of(caller, **changes))


async def shown(caller: Caller, batch: dict[str, Any]) -> Any:
    return await caller.get(f"{BATCHES}/{batch['id']}")


# One value of each kind: unit/job has the others.
@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"completion_window": "15d"}, "completion_window", "14 days"),
        ({"endpoint": "/score"}, "endpoint", "nothing that demo can do"),
        *(
            ({"endpoint": other}, "endpoint", f"one of {', '.join(BATCH_PATHS)}")
            for other in ("/v1/audio", "/tokenize", f"{CHAT}/../x", f"{CHAT}?a=1", "")
        ),
        ({"endpont": CHAT}, "endpont", "did you mean 'endpoint'"),
        ({"input_file_id": None, "requests": lines(1)}, "input_file_id", "required"),
    ],
)
async def test_what_is_no_batch_is_refused_naming_the_field(
    caller: Caller, changes: dict[str, Any], param: str, says: str
) -> None:
    error = await caller.refused("POST", BATCHES, **body_of(caller, **changes))
    assert (error["code"], error["param"]) == (400, param)
    assert says in error["message"]
    assert (caller.started, Batches(caller.settings).all()) == ([], [])


async def test_a_batch_that_can_be_started_here_is_by_as_many_jobs_as_are_to_share_it(
    caller: Caller,
) -> None:
    before = int(time.time())
    asked = {"metadata": {"mine": "ä"}, "completion_window": "2h", "endpoint": CHAT}
    batch = await created(caller, data_parallelism=3, **asked)
    assert caller.started == [LongWork("batch", batch["id"])] * 3
    assert await shown(caller, batch) == batch
    assert {name: batch[name] for name in asked} == asked
    assert (batch["object"], batch["status"], "run_with" in batch) == ("batch", "validating", False)
    assert before <= batch["created_at"] <= time.time()
    assert batch["expires_at"] == batch["created_at"] + 7_200


@pytest.mark.parametrize("starts", [False, None], ids=["can not be", "nothing is"])
async def test_a_batch_that_is_not_started_comes_with_the_job_that_runs_it(
    engine: ScriptedEngine, tmp_path: Path, starts: bool | None
) -> None:
    engine.script = tuple(tokens("a"))
    caller = Caller(engine, tmp_path, starts)
    made = await created(caller)
    assert made["run_with"] == {"input": {"batch": {"id": made["id"]}}}
    batch = (await caller.job(**made["run_with"]["input"]))["batch"]
    assert (batch["id"], batch["status"]) == (made["id"], "completed")
    assert len(results(tmp_path, batch)[0]) == 3


async def test_the_same_job_creates_one_batch_and_another_job_another(caller: Caller) -> None:
    body = body_of(caller)
    first, again, other = [
        (await caller.job(job, route=BATCHES, method="POST", body=body))["id"]
        for job in ("job-1", "job-1", "job-2")
    ]
    assert first == again != other
    assert len(Batches(caller.settings).all()) == 2


@pytest.mark.usefixtures("embedder")
async def test_an_embedders_endpoint_is_taken_beside_a_model(caller: Caller) -> None:
    assert (await created(caller, endpoint="/v1/embeddings"))["endpoint"] == "/v1/embeddings"
    error = await caller.refused("POST", BATCHES, **body_of(caller, endpoint="/rerank"))
    assert "nothing that demo, minilm can do" in error["message"]


async def test_pages_have_20_and_the_newest_first_whatever_order_is_asked_for(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ids = time.time(), list[str]()
    for number in range(23):
        monkeypatch.setattr(time, "time", lambda moment=now + number: moment)
        ids.insert(0, (await created(caller))["id"])
    first = await caller.get(BATCHES)
    three = await caller.get(f"{BATCHES}?limit=3&after={first['last_id']}&order=asc")
    pages = [[batch["id"] for batch in page["data"]] for page in (first, three)]
    assert pages == [ids[:20], ids[20:]]
    assert (first["has_more"], three["has_more"]) == (True, False)


async def test_a_batch_that_nobody_runs_is_cancelled_at_once(caller: Caller) -> None:
    batch = await created(caller)
    cancelled = await caller.post(f"{BATCHES}/{batch['id']}/cancel")
    assert (cancelled["status"], len(caller.started)) == ("cancelled", 1)
    assert cancelled["cancelled_at"] >= cancelled["cancelling_at"] >= batch["created_at"]


async def test_a_batch_that_may_run_is_cancelled_by_whoever_goes_on_with_it(caller: Caller) -> None:
    batch = await created(caller)
    leases = Batches(caller.settings).get(batch["id"]).leases("plan")
    leases.mkdir(parents=True)
    (leases / "lease-1").touch()
    cancelling = await caller.post(f"{BATCHES}/{batch['id']}/cancel")
    (leases / "lease-1").unlink()
    statuses = (cancelling["status"], (await shown(caller, batch))["status"])
    assert statuses == ("cancelling", "cancelled")
    assert caller.started == [LongWork("batch", batch["id"])] * 2


async def test_an_expired_batch_has_ended(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = await created(caller, completion_window="1h")
    for before, status in ((1, "validating"), (0, "expired")):
        monkeypatch.setattr(time, "time", lambda moment=batch["expires_at"] - before: moment)
        assert (await shown(caller, batch))["status"] == status
    assert (await shown(caller, batch))["expired_at"] == batch["expires_at"]


async def test_a_batch_that_has_ended_can_not_be_cancelled(caller: Caller) -> None:
    caller.engine.script = tuple(tokens("a"))
    batch = (await caller.job(batch={"requests": lines(1), "endpoint": CHAT}))["batch"]
    error = await caller.refused("POST", f"{BATCHES}/{batch['id']}/cancel")
    assert (error["code"], error["retryable"]) == (409, False)
    assert "completed" in error["message"]
    assert await shown(caller, batch) == batch
