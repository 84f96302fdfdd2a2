"""The end of a batch: decided once, carried out by whoever comes, whatever else goes on."""

import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from support.batches import (
    answered,
    as_text,
    begun,
    content,
    given_up,
    lines,
    only,
    results,
    worker_at,
)
from support.engine.scripted import CHAT, ScriptedEngine, settings, tokens, until

from worker.batches.finish import finish, settle
from worker.batches.parts import Part, Row
from worker.batches.state import Batch
from worker.batches.store import Batches
from worker.errors import Conflict, NoSuchObject
from worker.volume.lease import Leases
from worker.volume.record import STALE_S

SLOW = tokens("a", "b", pause=0.05)


def batches_at(root: Path, **environ: str) -> Batches:
    return Batches.of(settings(FILES_PATH=str(root), **environ))


async def in_the_middle(root: Path, count: int = 300, **spec: Any) -> Batch:
    """Return a batch of which a worker has answered some lines, and no worker is at it."""
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 4
        spec |= {"requests": lines(count), "endpoint": CHAT}
        running = await begun(worker_at(root, engine), engine, 20, **spec)
        return await given_up(root, engine, running)


def died(batch: Batch, name: str) -> Path:
    """Leave a lease as a worker that was killed does; return its file."""
    leases = batch.leases(name)
    leases.mkdir(parents=True, exist_ok=True)
    lease = leases / "lease-1"
    lease.write_text('{"owner":"dead","host":"h","pid":1,"attempt":1}')
    return lease


def long_ago(lease: Path) -> None:
    os.utime(lease, (then := time.time() - STALE_S - 1, then))


async def test_two_who_finish_at_once_write_the_same(tmp_path: Path) -> None:
    batch = await in_the_middle(tmp_path)
    both = await asyncio.gather(
        *(
            asyncio.to_thread(finish, batches_at(tmp_path), batch, status)
            for status in ("cancelled", "expired")
        )
    )
    assert both[0] == both[1] == batch.result
    output, errors = results(tmp_path, batch.shown())
    assert len(output) + len(errors) == 300
    written = {file.id for file in batches_at(tmp_path).files.list(purpose="batch_output").data}
    assert written == {both[0].output_file_id, both[0].error_file_id}


async def test_an_end_that_was_decided_is_carried_out_after_a_death(tmp_path: Path) -> None:
    batch = await in_the_middle(tmp_path)
    ending = batch.decide("cancelled")
    died(batch, "end")
    late = Part(batch.parts, "0.zombie")
    await late.add(Row(300, False, 1, 1, b'{"custom_id": "c299"}'))
    before = batch.counts()
    await late.close()
    # All but the second at which it was counted.
    assert batch.counts().model_copy(update={"at": before.at}) == before
    with ScriptedEngine() as engine:
        settle(batches_at(tmp_path), batch)
        assert batch.shown()["status"] == "cancelling"
        long_ago(batch.leases("end") / "lease-1")
        path = f"/v1/batches/{batch.id}"
        shown = await answered(worker_at(tmp_path, engine), {"route": path, "method": "GET"})
    assert shown["status"] == "cancelled"
    assert shown["output_file_id"] == ending.output_file_id
    output, errors = results(tmp_path, shown)
    assert "c299" in errors
    assert len(output) == before.completed == shown["request_counts"]["completed"]


async def test_a_cancel_of_a_batch_that_is_being_ended_changes_nothing(tmp_path: Path) -> None:
    batch = await in_the_middle(tmp_path)
    batch.decide("expired")
    batch.cancel()
    assert batch.shown()["status"] == "finalizing"
    settle(batches_at(tmp_path), batch)
    assert batch.shown()["status"] == "expired"
    with pytest.raises(Conflict, match="expired"):
        batch.cancel()


async def test_a_batch_is_not_ended_by_others_while_a_worker_may_be_at_it(tmp_path: Path) -> None:
    batch = await in_the_middle(tmp_path)
    lease = died(batch, "shard-0")
    batch.cancel()
    settle(batches_at(tmp_path), batch)
    assert not batch.ended()
    long_ago(lease)
    settle(batches_at(tmp_path), batch)
    assert batch.shown()["status"] == "cancelled"


async def test_a_runner_waits_for_the_lines_of_another_before_it_ends_a_batch(
    tmp_path: Path,
) -> None:
    batch = await in_the_middle(tmp_path, data_parallelism=2)
    plan = batch.plan
    assert plan is not None
    index = batch.shards_left(plan)[-1]
    number = plan.shards[index].first
    with ScriptedEngine() as engine:
        leases = Leases(batch.leases(f"shard-{index}"))
        with leases.taken(lambda: (0, 0)):
            batch.cancel()
            job = {"batch": {"id": batch.id}}
            running = asyncio.create_task(answered(worker_at(tmp_path, engine), job, "job-2"))
            await asyncio.sleep(2)
            assert not batch.ended()
            part = Part(batch.parts, f"{index}.other")
            await part.add(Row(number, False, 1, 1, b'{"custom_id": "late"}'))
            await part.close()
        shown = (await running)["batch"]
    assert shown["status"] == "cancelled"
    assert "late" in results(tmp_path, shown)[0]


async def test_short_shards_make_no_living_worker_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look = Leases.look

    def counted(leases: Leases) -> Any:
        looks.append(leases)
        return look(leases)

    monkeypatch.setattr(Leases, "look", counted)
    batch = await in_the_middle(tmp_path, 200, data_parallelism=8)
    looks.clear()
    with ScriptedEngine(*tokens("a")) as engine:
        plan = batch.plan
        assert plan is not None
        first, *_ = batch.shards_left(plan)
        leases = Leases(batch.leases(f"shard-{first}"))
        with leases.taken(lambda: (0, 0)) as held:
            began = time.monotonic()
            job = {"batch": {"id": batch.id}}
            running = asyncio.create_task(answered(worker_at(tmp_path, engine), job, "job-2"))
            assert await until(lambda: batch.shards_left(plan) == [first])
            assert held is not None
            assert len(looks) <= time.monotonic() - began + 1
        assert (await running)["batch"]["status"] == "completed"


async def test_answers_that_the_volume_has_lost_are_computed_again(tmp_path: Path) -> None:
    batch = await in_the_middle(tmp_path, 60)
    durable = batch.counts().completed
    (records,) = batch.parts.glob("*.records")
    (texts,) = batch.parts.glob("*.jsonl")
    size = texts.stat().st_size
    with texts.open("r+b") as opened:
        opened.seek(size // 2)
        opened.write(bytes(size // 4))
    # As if the shard had been done before that.
    batch.finish_shard(0)
    with ScriptedEngine(*tokens("a")) as engine:
        job = {"batch": {"id": batch.id}}
        shown = (await answered(worker_at(tmp_path, engine), job, "job-2"))["batch"]
    assert records.exists()
    assert 60 - durable < len(engine.asked) < 60
    output, errors = results(tmp_path, shown)
    assert (shown["status"], len(output), errors) == ("completed", 60, {})


@pytest.mark.parametrize("way", ["changed", "removed"])
async def test_a_batch_whose_input_is_no_more_the_same_fails_and_keeps_its_answers(
    tmp_path: Path, way: str
) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "in.jsonl").write_bytes(as_text(lines(300)))
    spec = {"input_path": "inbox/in.jsonl", "endpoint": CHAT}
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 4
        worker = worker_at(tmp_path, engine)
        running = await begun(worker, engine, 20, **spec)
        durable = (await given_up(tmp_path, engine, running)).counts().completed
        if way == "changed":
            (tmp_path / "inbox" / "in.jsonl").write_bytes(as_text(reversed(lines(300))))
        else:
            (tmp_path / "inbox" / "in.jsonl").unlink()
        shown = (await answered(worker, {"batch": {"id": only(tmp_path).id}}, "job-2"))["batch"]
    assert (shown["status"], shown["error_file_id"]) == ("failed", None)
    assert shown["errors"]["data"][0]["code"] == "input_changed"
    assert len(results(tmp_path, shown)[0]) == durable > 0
    assert shown["failed_at"] is not None


async def test_an_input_that_changes_while_it_is_read_is_not_answered_further(
    tmp_path: Path,
) -> None:
    place = tmp_path / "inbox" / "in.jsonl"
    place.parent.mkdir()
    place.write_bytes(as_text(lines(1000)))
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 4
        worker = worker_at(tmp_path, engine, BATCH_CONCURRENCY="8")
        spec = {"input_path": "inbox/in.jsonl", "endpoint": CHAT}
        running = await begun(worker, engine, 20, **spec)
        # In place, with lines of the same lengths.
        place.write_bytes(place.read_bytes().replace(b'"custom_id": "c', b'"custom_id": "d'))
        shown = (await running)["batch"]
    assert shown["status"] == "failed"
    assert all(name.startswith("c") for name in results(tmp_path, shown)[0])


async def test_a_batch_without_its_input_still_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    batch = await in_the_middle(tmp_path)
    shutil.rmtree(tmp_path / "worker" / "files" / batch.request.input_file_id)
    batch.cancel()
    settle(batches_at(tmp_path), batch)
    shown = batch.shown()
    assert (shown["status"], shown["error_file_id"]) == ("cancelled", None)
    assert len(content(tmp_path, shown["output_file_id"])) == batch.counts().completed


async def test_an_input_that_is_gone_before_it_was_checked_fails_the_batch(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "in.jsonl").write_bytes(as_text(lines(3)))
    body = {"path": "inbox/in.jsonl", "purpose": "batch"}
    with ScriptedEngine() as engine:
        worker = worker_at(tmp_path, engine)
        file = await answered(worker, {"route": "/v1/files", "method": "POST", "body": body})
        body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
        made = {"route": "/v1/batches", "method": "POST", "body": body}
        batch = await answered(worker, made, "job-2")
        (tmp_path / "inbox" / "in.jsonl").unlink()
        shown = (await answered(worker, batch["run_with"]["input"], "job-3"))["batch"]
    assert shown["status"] == "failed"
    assert shown["errors"]["data"][0]["code"] == "input_changed"


async def test_retention_keeps_the_inputs_of_batches_that_go_on(tmp_path: Path) -> None:
    batch = await in_the_middle(tmp_path)
    file_id = batch.request.input_file_id
    batches = batches_at(tmp_path, FILES_RETENTION_DAYS="0.000001")
    assert batches.inputs_in_use() == {file_id}
    meta = tmp_path / "worker" / "files" / file_id / "meta.json"
    stored = batches.files.get(file_id)
    meta.write_text(stored.model_copy(update={"expires_at": 1}).model_dump_json())
    assert (batches.files.sweep(batches.inputs_in_use()), batches.sweep()) == (0, 0)
    with ScriptedEngine(*tokens("a")) as engine:
        job = {"batch": {"id": batch.id}}
        shown = (await answered(worker_at(tmp_path, engine), job, "job-2"))["batch"]
    assert shown["status"] == "completed"
    assert batches.files.sweep(batches.inputs_in_use()) == 1


async def test_a_batch_that_is_removed_is_not_there_for_whoever_looks_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await in_the_middle(tmp_path)
    batches = batches_at(tmp_path)
    counts = Batch.counts

    def meanwhile(found: Batch) -> Any:
        shutil.rmtree(batch.directory)
        return counts(found)

    monkeypatch.setattr(Batch, "counts", meanwhile)
    with pytest.raises(NoSuchObject):
        batch.shown()
    assert batches.all() == []


async def test_a_batch_that_nobody_ended_is_removed_long_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await in_the_middle(tmp_path)
    batches = batches_at(tmp_path, FILES_RETENTION_DAYS="1")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1.5 * 24 * 3600)
    assert batches.sweep() == 0
    monkeypatch.setattr(time, "time", lambda: now + 2.5 * 24 * 3600)
    assert batches.sweep() == 1
    assert not batch.directory.exists()
