"""OpenAI's routes for batches: what is created, listed, described and cancelled, and by whom."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.batches import answered, as_text, batch_of, lines, refused, results, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, settings, tokens
from support.tables.batch_requests import NO_IDS, REFUSED

from worker.app import Worker
from worker.batches.store import Batches
from worker.engine import Model
from worker.files import Files
from worker.job.long_work import LongWork

BATCHES = "/v1/batches"


class Caller:
    """Sends jobs to a worker with a volume, which may be able to start batches."""

    def __init__(self, root: Path, engine: ScriptedEngine, *, starts: bool = True) -> None:
        self.started: list[str] = []
        self.root = root
        self._jobs = 0

        async def start(work: LongWork) -> bool:
            self.started.append(work.id)
            return starts

        configured = settings(FILES_PATH=str(root))
        self.worker = Worker(engine.engines, configured, start=start)
        self.batches = Batches.of(configured)
        self.file = Files.of(configured).receive(
            [as_text(lines(3))], filename="in.jsonl", purpose="batch"
        )

    async def asks(self, method: str, path: str, body: Any = None) -> Any:
        self._jobs += 1
        payload = {"route": path, "method": method, "body": body}
        return await answered(self.worker, payload, f"job-{self._jobs}")

    async def creates(self, **changes: Any) -> Any:
        body = {"input_file_id": self.file.id, "endpoint": CHAT, **changes}
        return await self.asks("POST", BATCHES, body)

    async def refused(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return await refused(self.worker, {"route": path, "method": method, "body": body})


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_batch_is_refused_naming_the_field(name: str, tmp_path: Path) -> None:
    row = REFUSED[name]
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        body = row.of({"input_file_id": caller.file.id, "endpoint": CHAT})
        error = await caller.refused("POST", BATCHES, body)
    assert (error["code"], caller.started, caller.batches.all()) == (400, [], [])
    assert error["param"].endswith(row.param)
    assert row.says in error["message"]


@pytest.mark.parametrize("keys", [{"requests": lines(1)}, {"input_path": "a"}, {"id": "batch_a"}])
async def test_the_route_takes_files_only(keys: dict[str, Any], tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        error = await Caller(tmp_path, engine).refused("POST", BATCHES, {"endpoint": CHAT, **keys})
    assert (error["code"], error["param"]) == (400, "input_file_id")


@pytest.mark.parametrize("text", NO_IDS, ids=lambda text: ascii(text[:40]))
async def test_a_file_that_is_not_there_is_no_input(text: str, tmp_path: Path) -> None:
    body = {"endpoint": CHAT, "input_file_id": text.format(prefix="file-")}
    with ScriptedEngine() as engine:
        error = await Caller(tmp_path, engine).refused("POST", BATCHES, body)
    assert (error["code"], error["param"]) == (404, "input_file_id")


@pytest.mark.parametrize(
    "text", [text for text in NO_IDS if len(text) > 2], ids=lambda text: ascii(text[:40])
)
@pytest.mark.parametrize(("method", "path"), [("GET", "{}"), ("POST", "{}/cancel")])
async def test_ids_that_are_none_are_404_and_tell_no_path(
    method: str, path: str, text: str, tmp_path: Path
) -> None:
    path = f"{BATCHES}/{path.format(text.format(prefix='batch_'))}"
    with ScriptedEngine() as engine:
        error = await Caller(tmp_path, engine).refused(method, path)
    assert error["code"] == 404
    assert str(tmp_path) not in json.dumps(error)


async def test_a_batch_that_was_never_created_is_404_naming_its_id(tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        for method, path in (("GET", ""), ("POST", "/cancel")):
            error = await caller.refused(method, f"{BATCHES}/batch_{'a' * 24}{path}")
            assert (error["code"], error["param"]) == (404, "batch_id")


async def test_a_batch_that_can_be_started_here_is(tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        before = int(time.time())
        metadata = {"mine": "ä"}
        batch = await caller.creates(metadata=metadata, completion_window="2h")
        assert caller.started == [batch["id"]]
        again = await caller.asks("GET", f"{BATCHES}/{batch['id']}")
    assert "run_with" not in batch
    assert again == batch
    assert (batch["object"], batch["status"]) == ("batch", "validating")
    assert (batch["endpoint"], batch["input_file_id"]) == (CHAT, caller.file.id)
    assert (batch["completion_window"], batch["metadata"]) == ("2h", metadata)
    assert before <= batch["created_at"] <= time.time()
    assert batch["expires_at"] == batch["created_at"] + 7_200


async def test_a_batch_that_can_not_be_started_comes_with_the_job_that_runs_it(
    tmp_path: Path,
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        caller = Caller(tmp_path, engine, starts=False)
        created = await caller.creates()
        batch = (await answered(caller.worker, created["run_with"]["input"], "job-r"))["batch"]
    assert (batch["id"], batch["status"]) == (created["id"], "completed")
    assert len(results(tmp_path, batch)[0]) == 3


async def test_a_batch_of_several_jobs_is_started_as_often(tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        batch = await caller.creates(data_parallelism=3)
    assert caller.started == [batch["id"]] * 3


async def test_a_worker_that_starts_nothing_says_what_to_send(tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        caller.worker = worker_at(tmp_path, engine)
        batch = await caller.creates()
    assert batch["run_with"] == {"input": {"batch": {"id": batch["id"]}}}


async def test_the_same_job_creates_one_batch_and_another_job_another(tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        first = await caller.creates()
        caller._jobs = 0
        again = await caller.creates()
        other = await caller.creates()
    assert first["id"] == again["id"] != other["id"]
    assert len(caller.batches.all()) == 2


async def test_an_embedders_endpoint_is_taken_beside_a_model(tmp_path: Path) -> None:
    with ScriptedEngine() as engine, ScriptedEngine() as embedder:
        embedder.model = Model(("minilm",), 512, "cpu", frozenset({"embed"}))
        embedder.bodies = {"/v1/embeddings": frozenset({"input"})}
        engine.embedder = embedder
        caller = Caller(tmp_path, engine)
        batch = await caller.creates(endpoint="/v1/embeddings")
        error = await caller.refused(
            "POST", BATCHES, {"input_file_id": caller.file.id, "endpoint": "/rerank"}
        )
    assert batch["endpoint"] == "/v1/embeddings"
    assert "nothing that demo, minilm can do" in error["message"]


async def test_lists_are_pages_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, created = time.time(), []
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        empty = await caller.asks("GET", BATCHES)
        for number in range(23):
            monkeypatch.setattr(time, "time", lambda moment=now + number: moment)
            created.append((await caller.creates())["id"])
        first = await caller.asks("GET", BATCHES)
        rest = await caller.asks("GET", f"{BATCHES}?after={first['last_id']}")
        three = await caller.asks("GET", f"{BATCHES}?limit=3&after={created[10]}&order=asc")
        every = await caller.asks("GET", f"{BATCHES}?limit=100&after=")
    created.reverse()
    assert empty == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    assert [batch["id"] for batch in first["data"]] == created[:20]
    assert (first["first_id"], first["last_id"]) == (created[0], created[19])
    assert (first["has_more"], rest["has_more"], three["has_more"]) == (True, False, True)
    assert [batch["id"] for batch in rest["data"]] == created[20:]
    assert [batch["id"] for batch in three["data"]] == created[13:16]
    assert [batch["id"] for batch in every["data"]] == created


@pytest.mark.parametrize("limit", ["0", "101", "-1", "1.5", "many", "1e1", "9" * 5_000])
async def test_a_limit_that_is_none_is_refused(limit: str, tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        error = await Caller(tmp_path, engine).refused("GET", f"{BATCHES}?limit={limit}")
    assert (error["code"], error["param"]) == (400, "limit")


@pytest.mark.parametrize("after", ["batch_" + "a" * 24, "../secret", "%2e%2e%2fsecret", "%00"])
async def test_a_page_after_nothing_is_refused(after: str, tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        error = await Caller(tmp_path, engine).refused("GET", f"{BATCHES}?after={after}")
    assert (error["code"], error["param"]) == (404, "after")


async def test_a_batch_that_nobody_runs_is_cancelled_at_once(
    tmp_path: Path,
) -> None:
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        batch = await caller.creates()
        cancelled = await caller.asks("POST", f"{BATCHES}/{batch['id']}/cancel")
        error = await caller.refused("POST", f"{BATCHES}/{batch['id']}/cancel")
    assert (cancelled["status"], caller.started) == ("cancelled", [batch["id"]])
    assert cancelled["cancelled_at"] >= cancelled["cancelling_at"] >= batch["created_at"]
    assert (error["code"], "cancelled" in error["message"]) == (409, True)


async def test_a_batch_that_somebody_may_run_is_cancelled_by_whoever_goes_on_with_it(
    tmp_path: Path,
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        caller = Caller(tmp_path, engine)
        batch = await caller.creates()
        held = caller.batches.get(batch["id"]).leases("plan")
        held.mkdir(parents=True)
        (held / "lease-1").write_text("")
        shown = await caller.asks("POST", f"{BATCHES}/{batch['id']}/cancel")
        (held / "lease-1").unlink()
        described = await caller.asks("GET", f"{BATCHES}/{batch['id']}")
    assert (shown["status"], described["status"]) == ("cancelling", "cancelled")
    assert caller.started == [batch["id"]] * 2


async def test_a_batch_that_has_expired_ends_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        batch = await caller.creates(completion_window="1h")
        monkeypatch.setattr(time, "time", lambda: batch["expires_at"] - 1)
        before = await caller.asks("GET", f"{BATCHES}/{batch['id']}")
        monkeypatch.setattr(time, "time", lambda: batch["expires_at"])
        shown = await caller.asks("GET", f"{BATCHES}/{batch['id']}")
    assert (before["status"], shown["status"]) == ("validating", "expired")
    assert shown["expired_at"] == batch["expires_at"]


async def test_a_batch_that_is_complete_can_not_be_cancelled(tmp_path: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        caller = Caller(tmp_path, engine)
        batch = await batch_of(caller.worker, requests=lines(1), endpoint=CHAT)
        error = await caller.refused("POST", f"{BATCHES}/{batch['id']}/cancel")
        after = await caller.asks("GET", f"{BATCHES}/{batch['id']}")
    assert (error["code"], error["retryable"]) == (409, False)
    assert "completed" in error["message"]
    assert after == batch


async def test_without_a_volume_the_routes_say_what_the_operator_does(tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        caller = Caller(tmp_path, engine)
        caller.worker = Worker(engine.engines, settings(BASE_PATH=str(tmp_path / "none")))
        for method, path in (("GET", ""), ("GET", f"/batch_{'a' * 24}")):
            error = await caller.refused(method, f"{BATCHES}{path}")
            assert (error["code"], "FILES_PATH" in error["message"]) == (507, True)
