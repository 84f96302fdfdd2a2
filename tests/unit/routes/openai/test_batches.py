"""OpenAI's routes for batches: what is created, listed, described and cancelled, and by whom."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.batches import as_text, lines, results
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine, tokens

from worker.batches.store import Batches
from worker.files import Files
from worker.job.long_work import LongWork

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


def expiring(seconds: int, anchor: str = "created_at") -> dict[str, Any]:
    return {"output_expires_after": {"anchor": anchor, "seconds": seconds}}


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"endpoint": "/v1/audio"}, "endpoint", "one of /v1/chat"),
        ({"endpoint": f"{CHAT}/../x"}, "endpoint", "one of"),
        ({"endpoint": f"{CHAT}?a=1"}, "endpoint", "one of"),
        ({"endpoint": 5}, "endpoint", ""),
        ({"endpoint": "/v1/embeddings"}, "endpoint", "demo"),
        ({"endpoint": "/score"}, "endpoint", "nothing that demo can do"),
        ({"completion_window": ""}, "completion_window", "24h, 7d"),
        ({"completion_window": "90m"}, "completion_window", ""),
        ({"completion_window": "0h"}, "completion_window", ""),
        ({"completion_window": "-1d"}, "completion_window", ""),
        ({"completion_window": "15d"}, "completion_window", "14"),
        ({"completion_window": "337h"}, "completion_window", "14 days"),
        ({"completion_window": "٢h"}, "completion_window", ""),
        ({"completion_window": "24h\n"}, "completion_window", ""),
        ({"completion_window": 24}, "completion_window", ""),
        ({"metadata": {str(number): "a" for number in range(17)}}, "metadata", "16 pairs"),
        ({"metadata": {"a" * 65: "a"}}, "metadata", "64 and 512"),
        ({"metadata": {"a": "a" * 513}}, "metadata", "64 and 512"),
        ({"metadata": {"a": 1}}, "metadata.a", "string"),
        ({"metadata": ["a"]}, "metadata", "dictionary"),
        ({"metadata": {"a": "\ud800"}}, "metadata.a", "surrogate"),
        ({"metadata": {"\udfff": "a"}}, "metadata." + "\ufffd" * 3 + ".[key]", "surrogate"),
        (expiring(3599), "output_expires_after.seconds", "3600"),
        (expiring(2_592_001), "output_expires_after.seconds", "2592000"),
        (expiring(3600, "now"), "output_expires_after.anchor", "created_at"),
        ({"data_parallelism": 0}, "data_parallelism", ""),
        ({"data_parallelism": 65}, "data_parallelism", "64"),
        ({"data_parallelism": 1.5}, "data_parallelism", ""),
        ({"endpont": CHAT}, "endpont", ""),
        ({"input_file_id": 5}, "input_file_id", ""),
        ({"input_file_id": None, "requests": lines(1)}, "input_file_id", ""),
        ({"input_file_id": None, "input_path": "a"}, "input_file_id", ""),
        ({"input_file_id": None, "id": "batch_a"}, "input_file_id", ""),
    ],
)
async def test_what_is_no_batch_is_refused_naming_the_field(
    caller: Caller, changes: dict[str, Any], param: str, says: str
) -> None:
    error = await caller.refused("POST", BATCHES, **body_of(caller, **changes))
    assert (error["code"], error["param"]) == (400, param)
    assert says in error["message"]
    assert (caller.started, Batches.of(caller.settings).all()) == ([], [])


@pytest.mark.parametrize("id", ["", "file-../secret", "\ud800", f"file-{'a' * 24}"])
async def test_a_file_that_is_not_there_is_no_input(caller: Caller, id: str) -> None:
    body = {"endpoint": CHAT, "input_file_id": id}
    error = await caller.refused("POST", BATCHES, **body)
    assert (error["code"], error["param"]) == (404, "input_file_id")


@pytest.mark.parametrize(("method", "path"), [("GET", "{}"), ("POST", "{}/cancel")])
@pytest.mark.parametrize("id", [f"batch_{'a' * 24}", "batch_%2e%2e", "a\0b"])
async def test_an_unknown_batch_is_404(caller: Caller, method: str, path: str, id: str) -> None:
    error = await caller.refused(method, f"{BATCHES}/{path.format(id)}")
    assert (error["code"], error["param"]) == (404, "batch_id")
    assert str(caller.root) not in json.dumps(error)


async def test_a_batch_that_can_be_started_here_is(caller: Caller) -> None:
    before = int(time.time())
    batch = await created(caller, metadata={"mine": "ä"}, completion_window="2h")
    assert caller.started == [LongWork("batch", batch["id"])]
    assert await caller.get(f"{BATCHES}/{batch['id']}") == batch
    assert "run_with" not in batch
    assert (batch["object"], batch["status"]) == ("batch", "validating")
    assert (batch["endpoint"], batch["input_file_id"][:5]) == (CHAT, "file-")
    assert (batch["completion_window"], batch["metadata"]) == ("2h", {"mine": "ä"})
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


async def test_a_batch_of_several_jobs_is_started_as_often(caller: Caller) -> None:
    batch = await created(caller, data_parallelism=3)
    assert caller.started == [LongWork("batch", batch["id"])] * 3


async def test_the_same_job_creates_one_batch_and_another_job_another(caller: Caller) -> None:
    body = body_of(caller)
    jobs = ("job-1", "job-1", "job-2")
    first, again, other = [
        (await caller.job(job, route=BATCHES, method="POST", body=body))["id"] for job in jobs
    ]
    assert first == again != other
    assert len(Batches.of(caller.settings).all()) == 2


@pytest.mark.usefixtures("embedder")
async def test_an_embedders_endpoint_is_taken_beside_a_model(caller: Caller) -> None:
    assert (await created(caller, endpoint="/v1/embeddings"))["endpoint"] == "/v1/embeddings"
    error = await caller.refused("POST", BATCHES, **body_of(caller, endpoint="/rerank"))
    assert "nothing that demo, minilm can do" in error["message"]


async def test_pages_have_the_newest_first(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    now, ids = time.time(), []
    for number in range(23):
        monkeypatch.setattr(time, "time", lambda moment=now + number: moment)
        ids.append((await created(caller))["id"])
    first = await caller.get(BATCHES)
    rest = await caller.get(f"{BATCHES}?after={first['last_id']}")
    three = await caller.get(f"{BATCHES}?limit=3&after={ids[10]}&order=asc")
    every = await caller.get(f"{BATCHES}?limit=100&after=")
    ids.reverse()
    pages = [[batch["id"] for batch in page["data"]] for page in (first, rest, three, every)]
    assert pages == [ids[:20], ids[20:], ids[13:16], ids]
    assert [page["has_more"] for page in (first, rest, three)] == [True, False, True]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        *((f"limit={limit}", 400) for limit in ("0", "101", "1.5", "many", "9" * 5_000)),
        *((f"after={after}", 404) for after in (f"batch_{'a' * 24}", "%2e%2e%2fsecret", "%00")),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_page_that_is_none_is_refused(caller: Caller, query: str, code: int) -> None:
    error = await caller.refused("GET", f"{BATCHES}?{query}")
    assert (error["code"], error["param"]) == (code, query.partition("=")[0])


async def test_a_batch_that_nobody_runs_is_cancelled_at_once(caller: Caller) -> None:
    batch = await created(caller)
    cancelled = await caller.post(f"{BATCHES}/{batch['id']}/cancel")
    assert (cancelled["status"], len(caller.started)) == ("cancelled", 1)
    assert cancelled["cancelled_at"] >= cancelled["cancelling_at"] >= batch["created_at"]


async def test_a_batch_that_may_run_is_cancelled_by_whoever_goes_on_with_it(caller: Caller) -> None:
    batch = await created(caller)
    leases = Batches.of(caller.settings).get(batch["id"]).leases("plan")
    leases.mkdir(parents=True)
    (leases / "lease-1").write_text("")
    cancelling = await caller.post(f"{BATCHES}/{batch['id']}/cancel")
    (leases / "lease-1").unlink()
    described = await caller.get(f"{BATCHES}/{batch['id']}")
    assert (cancelling["status"], described["status"]) == ("cancelling", "cancelled")
    assert caller.started == [LongWork("batch", batch["id"])] * 2


async def test_an_expired_batch_has_ended(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = await created(caller, completion_window="1h")
    monkeypatch.setattr(time, "time", lambda: batch["expires_at"] - 1)
    before = await caller.get(f"{BATCHES}/{batch['id']}")
    monkeypatch.setattr(time, "time", lambda: batch["expires_at"])
    after = await caller.get(f"{BATCHES}/{batch['id']}")
    assert (before["status"], after["status"]) == ("validating", "expired")
    assert after["expired_at"] == batch["expires_at"]


async def test_a_batch_that_has_ended_can_not_be_cancelled(caller: Caller) -> None:
    caller.engine.script = tuple(tokens("a"))
    batch = (await caller.job(batch={"requests": lines(1), "endpoint": CHAT}))["batch"]
    error = await caller.refused("POST", f"{BATCHES}/{batch['id']}/cancel")
    assert (error["code"], error["retryable"]) == (409, False)
    assert "completed" in error["message"]
    assert await caller.get(f"{BATCHES}/{batch['id']}") == batch
