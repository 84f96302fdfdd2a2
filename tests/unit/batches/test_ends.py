"""The end of a batch: decided once, carried out by whoever comes, whatever else goes on."""

import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from support.batches import Batching, as_text, content, lines, of_lines, worker_at
from support.engine.scripted import CHAT, settings
from support.processes.background import eventually

from worker.batches.parts import Part, Row
from worker.batches.record import Batch
from worker.batches.store import Batches
from worker.dialects.openai import objects
from worker.errors import Conflict, NoSuchObject
from worker.long_work.record import STALE_S
from worker.volume.lease import Leases

COUNT = 300
FROM_INBOX: dict[str, Any] = {"input_path": "inbox/in.jsonl", "endpoint": CHAT}


@pytest.fixture
def input_file(tmp_path: Path) -> Path:
    """A file of lines on the volume."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "in.jsonl").write_bytes(as_text(lines(COUNT)))
    return tmp_path / "inbox" / "in.jsonl"


def died(batch: Batch, name: str) -> Path:
    """Leave a lease as a worker that was killed does; return its file."""
    leases = batch.leases(name)
    leases.mkdir(parents=True, exist_ok=True)
    (leases / "lease-1").write_text('{"owner": "dead", "host": "h", "pid": 1, "attempt": 1}')
    return leases / "lease-1"


def long_ago(lease: Path) -> None:
    os.utime(lease, (then := time.time() - STALE_S - 1, then))


def status_of(batch: Batch) -> str:
    return batch.snapshot().status


@pytest.mark.parametrize("names", [("plan",), ("shard-0",), ("end",), ("plan", "shard-0", "end")])
async def test_the_leases_of_a_dead_worker_are_taken_over(
    batching: Batching, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.long_work.attempt.LOOK_S", 0.01)
    # So little time that it only creates the batch.
    await batching.run(**of_lines(3, max_runtime_sec=1))
    batch = batching.only()
    (batch.directory / "plan.json").unlink()
    leases = [died(batch, name) for name in names]
    found = await batching.run("job-2", id=batch.id)
    assert (found["status"], len(batching.results(found)[0])) == ("completed", 3)
    assert not any(lease.exists() for lease in leases)


async def test_two_who_finish_at_once_write_the_same(batching: Batching) -> None:
    batch = await batching.in_the_middle()
    first, second = await asyncio.gather(
        asyncio.to_thread(batching.batches.end, batch, "cancelled"),
        asyncio.to_thread(batching.batches.end, batch, "expired"),
    )
    assert first == second == batch.result
    output, errors = batching.results(objects.batch(batch))
    assert len(output) + len(errors) == COUNT
    written = {file.id for file in batching.batches.files.list(purpose="batch_output").data}
    assert written == {first.output_file_id, first.error_file_id}


async def test_an_end_that_was_decided_is_carried_out_after_a_death(batching: Batching) -> None:
    batch = await batching.in_the_middle()
    ending = batch.decide("cancelled")
    lease = died(batch, "end")
    late = Part(batch.parts, "0.zombie")
    await late.add(Row(COUNT, False, 1, 1, b'{"custom_id": "c299"}'))
    before = batch.counts()
    await late.close()
    # All but the second at which it was counted.
    assert batch.counts().model_copy(update={"at": before.at}) == before
    batching.batches.settle(batch)
    assert status_of(batch) == "cancelling"
    long_ago(lease)
    found = await batching.get(batch)
    assert (found["status"], found["output_file_id"]) == ("cancelled", ending.output_file_id)
    output, errors = batching.results(found)
    assert "c299" in errors
    assert len(output) == before.completed == found["request_counts"]["completed"]


async def test_a_cancel_of_a_batch_that_is_being_ended_changes_nothing(batching: Batching) -> None:
    batch = await batching.in_the_middle()
    batch.decide("expired")
    batch.cancel()
    assert status_of(batch) == "finalizing"
    batching.batches.settle(batch)
    assert status_of(batch) == "expired"
    with pytest.raises(Conflict, match="expired"):
        batch.cancel()


async def test_others_end_no_batch_while_a_worker_may_be_at_it(batching: Batching) -> None:
    batch = await batching.in_the_middle()
    lease = died(batch, "shard-0")
    batch.cancel()
    batching.batches.settle(batch)
    assert not batch.ended()
    long_ago(lease)
    batching.batches.settle(batch)
    assert status_of(batch) == "cancelled"


async def test_a_runner_waits_for_the_lines_of_another_before_it_ends_a_batch(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.long_work.attempt.LOOK_S", 0.01)
    looks: list[Leases] = []
    look = Leases.look

    def noted(leases: Leases) -> Any:
        looks.append(leases)
        return look(leases)

    batch = await batching.in_the_middle(data_parallelism=2)
    plan = batch.plan
    assert plan is not None
    index = batch.shards_left(plan)[-1]
    with Leases(batch.leases(f"shard-{index}")).taken():
        monkeypatch.setattr(Leases, "look", noted)
        batch.cancel()
        running = asyncio.create_task(batching.run("job-2", id=batch.id))
        await eventually(lambda: len(looks) > 1 or batch.ended())
        assert not batch.ended()
        part = Part(batch.parts, f"{index}.other")
        await part.add(Row(plan.shards[index].first, False, 1, 1, b'{"custom_id": "late"}'))
        await part.close()
    found = await running
    assert found["status"] == "cancelled"
    assert "late" in batching.results(found)[0]


async def test_answers_that_the_volume_has_lost_are_computed_again(batching: Batching) -> None:
    batch = await batching.in_the_middle(60)
    asked, durable = len(batching.engine.asked), batch.counts().completed
    (texts,) = batch.parts.glob("*.jsonl")
    size = texts.stat().st_size
    with texts.open("r+b") as opened:
        opened.seek(size // 2)
        opened.write(bytes(size // 4))
    # As if the shard had been done before that.
    batch.finish_shard(0)
    found = await batching.run("job-2", id=batch.id)
    assert 60 - durable < len(batching.engine.asked) - asked < 60
    output, errors = batching.results(found)
    assert (found["status"], len(output), errors) == ("completed", 60, {})


def put(place: Path, content: bytes | None) -> None:
    """Change a file in place, or remove it."""
    if content is None:
        place.unlink()
    else:
        place.write_bytes(content)


@pytest.mark.parametrize("content", [as_text(lines(COUNT)[::-1]), None], ids=["other", "none"])
async def test_a_batch_whose_input_is_no_more_the_same_fails_and_keeps_its_answers(
    batching: Batching, input_file: Path, content: bytes | None
) -> None:
    batch = await batching.abandoned(await batching.begun(20, **FROM_INBOX))
    durable = batch.counts().completed
    put(input_file, content)
    found = await batching.run("job-2", id=batch.id)
    assert (found["status"], found["error_file_id"]) == ("failed", None)
    assert found["errors"]["data"][0]["code"] == "input_changed"
    assert len(batching.results(found)[0]) == durable > 0
    assert found["failed_at"] is not None


async def test_a_changed_input_is_answered_no_more(batching: Batching, input_file: Path) -> None:
    before = as_text(lines(1000))
    put(input_file, before)
    worker = worker_at(batching.root, batching.engine, BATCH_CONCURRENCY="8")
    running = await batching.begun(20, worker, **FROM_INBOX)
    # Its lines have the same lengths.
    put(input_file, before.replace(b'"custom_id": "c', b'"custom_id": "d'))
    found = (await running)["batch"]
    assert found["status"] == "failed"
    assert {name[0] for name in batching.results(found)[0]} == {"c"}


async def test_a_batch_without_its_input_ends_when_it_is_cancelled(batching: Batching) -> None:
    batch = await batching.in_the_middle()
    shutil.rmtree(batching.root / "worker" / "files" / batch.request.input_file_id)
    batch.cancel()
    batching.batches.settle(batch)
    found = objects.batch(batch)
    assert (found["status"], found["error_file_id"]) == ("cancelled", None)
    assert len(content(batching.root, found["output_file_id"])) == batch.counts().completed


async def test_an_input_gone_before_its_check_fails(batching: Batching, input_file: Path) -> None:
    body = {"path": "inbox/in.jsonl", "purpose": "batch"}
    file = await batching.answered({"route": "/v1/files", "method": "POST", "body": body})
    body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    made = {"route": "/v1/batches", "method": "POST", "body": body}
    batch = await batching.answered(made, "job-2")
    put(input_file, None)
    found = (await batching.answered(batch["run_with"]["input"], "job-3"))["batch"]
    assert (found["status"], found["errors"]["data"][0]["code"]) == ("failed", "input_changed")


async def test_retention_keeps_the_inputs_of_batches_that_go_on(batching: Batching) -> None:
    batch = await batching.in_the_middle()
    file_id = batch.request.input_file_id
    batches = Batches(settings(FILES_PATH=str(batching.root), FILES_RETENTION_DAYS="0.000001"))
    meta = batching.root / "worker" / "files" / file_id / "meta.json"
    stored = batches.files.get(file_id)
    meta.write_text(stored.model_copy(update={"expires_at": 1}).model_dump_json())
    assert (batches.files.sweep(batches.inputs_in_use()), batches.sweep()) == (0, 0)
    assert (await batching.run("job-2", id=batch.id))["status"] == "completed"
    assert batches.files.sweep(batches.inputs_in_use()) == 1


async def test_a_removed_batch_is_gone(batching: Batching, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = await batching.in_the_middle()
    counts = Batch.counts

    def meanwhile(found: Batch) -> Any:
        shutil.rmtree(batch.directory)
        return counts(found)

    monkeypatch.setattr(Batch, "counts", meanwhile)
    with pytest.raises(NoSuchObject):
        batch.snapshot()
    assert batching.batches.all() == []
