"""Ends of batches: an end is decided once, and any worker can carry it out."""

import asyncio
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.batches import (
    BatchWorker,
    batch_request,
    file_lines,
    line,
    lines,
    to_jsonl,
    worker_with_volume,
)
from support.engine.scripted import CHAT, settings
from support.processes.background import poll_until
from support.volume import all_records, make_quota

from worker.batches.parts import LineCounts, PartWriter, part_path
from worker.batches.record import Batch, Batches
from worker.dialects.openai.batches import batch_object
from worker.errors import Conflict, NoSuchObject
from worker.long_work.records import MAX_DEATHS, STALE_S
from worker.volume import Volume
from worker.volume.lease import LeaseDirectory

COUNT = 300
FROM_INBOX: dict[str, Any] = {"input_path": "inbox/in.jsonl", "endpoint": CHAT}


@pytest.fixture
def input_file(tmp_path: Path) -> Path:
    """Write an input file to the volume; return its path."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "in.jsonl").write_bytes(to_jsonl(lines(COUNT)))
    return tmp_path / "inbox" / "in.jsonl"


def leave_lease(batch: Batch, name: str) -> Path:
    """Leave a lease as a killed worker does; return its file."""
    leases = batch.lease_directory(name)
    leases.mkdir(parents=True, exist_ok=True)
    (leases / "lease-1").write_text('{"owner": "dead", "host": "h", "pid": 1, "attempt": 1}')
    return leases / "lease-1"


def make_stale(lease: Path) -> None:
    os.utime(lease, (then := time.time() - STALE_S - 1, then))


async def write_late_line(
    batch: Batch, shard: int, number: int, result: bytes = b'{"custom_id": "late"}'
) -> None:
    """Append a line as a worker does that has been frozen meanwhile."""
    path = part_path(batch.parts_directory, shard, "frozen")
    part = PartWriter(path, LineCounts(), make_quota(Volume(batch.directory)).reserve)
    await part.add_line(number, result, LineCounts(1, 0, 1, 1))
    await part.close()


def status_of(batch: Batch) -> str:
    return batch.snapshot().status


async def test_a_batch_that_has_killed_many_workers_ends_with_its_finished_lines(
    batch_worker: BatchWorker,
) -> None:
    batch = await batch_worker.interrupted_batch()
    finished = batch.counts().completed
    lease = leave_lease(batch, "shard-0")
    for deaths, status in ((MAX_DEATHS - 1, "in_progress"), (MAX_DEATHS, "failed")):
        # Each worker acquired the lease with the next number.
        lease = lease.rename(lease.with_name(f"lease-{deaths + 1}"))
        assert (await batch_worker.get_batch(batch))["status"] == "in_progress", "it may be alive"
        make_stale(lease)
        found = await batch_worker.get_batch(batch)
        assert found["status"] == status
        lease.touch()
    assert found["errors"]["data"][0]["code"] == "workers_died"
    assert len(batch_worker.results(found)[0]) == finished


@pytest.mark.parametrize("names", [("plan",), ("shard-0",), ("end",), ("plan", "shard-0", "end")])
async def test_the_leases_of_a_dead_worker_are_taken_over(
    batch_worker: BatchWorker, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.long_work.runner.POLL_S", 0.01)
    # The time is so short that the job only creates the batch.
    await batch_worker.run_batch(**batch_request(3, max_runtime_sec=1))
    batch = batch_worker.only_batch()
    (batch.directory / "plan.json").unlink()
    leases = [leave_lease(batch, name) for name in names]
    response = await batch_worker.run_batch("job-2", id=batch.id)
    assert (response["status"], len(batch_worker.results(response)[0])) == ("completed", 3)
    assert not any(lease.exists() for lease in leases)


async def test_two_concurrent_ends_of_a_batch_write_the_same_result(
    batch_worker: BatchWorker,
) -> None:
    batch = await batch_worker.interrupted_batch()
    first, second = await asyncio.gather(
        asyncio.to_thread(batch_worker.batches.end, batch, "cancelled"),
        asyncio.to_thread(batch_worker.batches.end, batch, "expired"),
    )
    assert first == second == batch.result
    output, errors = batch_worker.results(batch_object(batch))
    assert len(output) + len(errors) == COUNT
    file_ids = {file.id for file in batch_worker.batches.files.list(purpose="batch_output").data}
    assert file_ids == {first.output_file_id, first.error_file_id}


async def test_another_worker_carries_out_an_end_that_a_dead_worker_decided(
    batch_worker: BatchWorker,
) -> None:
    batch = await batch_worker.interrupted_batch()
    ending = batch.decide_ending("cancelled")
    lease = leave_lease(batch, "end")
    before = batch.counts()
    await write_late_line(batch, 0, COUNT)
    assert batch.counts() == before
    batch_worker.batches.end_if_due(batch)
    assert status_of(batch) == "cancelling"
    make_stale(lease)
    response = await batch_worker.get_batch(batch)
    assert (response["status"], response["output_file_id"]) == ("cancelled", ending.output_file_id)
    output, errors = batch_worker.results(response)
    assert ("c299" in errors, "late" in output) == (True, False)
    assert len(output) == before.completed == response["request_counts"]["completed"]


async def test_cancelling_a_batch_that_is_ending_changes_nothing(batch_worker: BatchWorker) -> None:
    batch = await batch_worker.interrupted_batch()
    batch.decide_ending("expired")
    batch.cancel()
    assert status_of(batch) == "finalizing"
    batch_worker.batches.end_if_due(batch)
    assert status_of(batch) == "expired"
    with pytest.raises(Conflict, match="expired"):
        batch.cancel()


async def test_a_runner_waits_for_another_runners_lines_before_it_ends_a_batch(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.long_work.runner.POLL_S", 0.01)
    polls: list[LeaseDirectory] = []
    poll = LeaseDirectory.poll_claim

    def record_poll(leases: LeaseDirectory) -> Any:
        polls.append(leases)
        return poll(leases)

    batch = await batch_worker.interrupted_batch(data_parallelism=2)
    plan = batch.plan
    assert plan is not None
    index = batch.unfinished_shard_indexes(plan)[-1]
    with LeaseDirectory(batch.lease_directory(f"shard-{index}")).acquire():
        monkeypatch.setattr(LeaseDirectory, "poll_claim", record_poll)
        batch.cancel()
        job = asyncio.create_task(batch_worker.run_batch("job-2", id=batch.id))
        await poll_until(lambda: len(polls) > 1 or batch.has_ended())
        assert not batch.has_ended()
        await write_late_line(batch, index, plan.shards[index].first)
    response = await job
    assert response["status"] == "cancelled"
    assert "late" in batch_worker.results(response)[0]


async def test_an_answer_that_the_volume_has_lost_is_an_error(batch_worker: BatchWorker) -> None:
    await batch_worker.run_batch(**batch_request(5))
    batch = batch_worker.only_batch()
    for name in ("decision.json", "result.json"):
        (batch.directory / name).unlink()
    (part,) = batch.parts_directory.iterdir()
    first, *others = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(bytes(len(first) - 1) + b"\n" + b"".join(others))
    response = await batch_worker.run_batch("job-2", id=batch.id)
    output, errors = batch_worker.results(response)
    assert (response["status"], len(output), len(errors)) == ("completed", 4, 1)
    assert {error["error"]["code"] for error in errors.values()} == {"answer_lost"}


async def test_a_shard_that_two_workers_have_answered_together_is_done(
    batch_worker: BatchWorker,
) -> None:
    before = await batch_worker.run_batch(**batch_request(5))
    results, batch = batch_worker.results(before), batch_worker.only_batch()
    for name in ("decision.json", "result.json"):
        (batch.directory / name).unlink()
    (part,) = batch.parts_directory.iterdir()
    *others, last = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(others))
    await write_late_line(batch, 0, 5, msgspec.json.encode(json.loads(last)["result"]))
    after = await batch_worker.run_batch("job-2", id=batch.id)
    assert (after["status"], batch_worker.results(after)) == ("completed", results)
    assert len(batch_worker.engine.requests) == 5
    assert batch.counts() == LineCounts(5, 0, 1, 1)


@pytest.mark.parametrize(
    "missing",
    [
        ("result.json",),
        ("result.json", "files"),
        ("result.json", "files", "decision.json"),
    ],
    ids=len,
)
async def test_a_batch_whose_worker_dies_after_the_last_line_is_ended_without_another_request(
    batch_worker: BatchWorker, missing: tuple[str, ...]
) -> None:
    wrong_line = line("wrong", messages=5)
    before = await batch_worker.run_batch(requests=[*lines(9), wrong_line], endpoint=CHAT)
    results, batch = batch_worker.results(before), batch_worker.only_batch()
    request_count = len(batch_worker.engine.requests)
    for name in missing:
        if name == "files":
            for key in ("output_file_id", "error_file_id"):
                shutil.rmtree(batch_worker.root / "worker" / "files" / before[key])
        else:
            (batch.directory / name).unlink()
    assert batch.counts() == LineCounts(9, 1)
    after = await batch_worker.run_batch("job-2", id=batch.id)
    assert len(batch_worker.engine.requests) == request_count
    assert batch_worker.results(after) == results
    assert (after["status"], after["request_counts"]) == ("completed", before["request_counts"])


def replace_file(path: Path, content: bytes | None) -> None:
    """Write new content to a file, or remove the file if there is no content."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.mark.parametrize(
    "content", [to_jsonl(lines(COUNT)[::-1]), None], ids=["changed", "removed"]
)
async def test_a_batch_whose_input_has_changed_fails_and_keeps_its_answers(
    batch_worker: BatchWorker, input_file: Path, content: bytes | None
) -> None:
    batch = await batch_worker.interrupt(await batch_worker.start_batch(20, **FROM_INBOX))
    stored_count = batch.counts().completed
    replace_file(input_file, content)
    response = await batch_worker.run_batch("job-2", id=batch.id)
    assert (response["status"], response["error_file_id"]) == ("failed", None)
    assert response["errors"]["data"][0]["code"] == "input_changed"
    assert len(batch_worker.results(response)[0]) == stored_count > 0
    assert response["failed_at"] is not None


async def test_a_batch_stops_when_its_input_changes_while_it_runs(
    batch_worker: BatchWorker, input_file: Path
) -> None:
    before = to_jsonl(lines(1000))
    replace_file(input_file, before)
    worker = worker_with_volume(batch_worker.root, batch_worker.engine, BATCH_CONCURRENCY="8")
    job = await batch_worker.start_batch(20, worker, **FROM_INBOX)
    # The new lines are as long as the old ones.
    replace_file(input_file, before.replace(b'"custom_id": "c', b'"custom_id": "d'))
    response = (await job)["batch"]
    assert response["status"] == "failed"
    assert {name[0] for name in batch_worker.results(response)[0]} == {"c"}


async def test_a_cancelled_batch_ends_although_its_input_was_removed(
    batch_worker: BatchWorker,
) -> None:
    batch = await batch_worker.interrupted_batch()
    shutil.rmtree(batch_worker.root / "worker" / "files" / batch.request.input_file_id)
    batch.cancel()
    batch_worker.batches.end_if_due(batch)
    response = batch_object(batch)
    assert (response["status"], response["error_file_id"]) == ("cancelled", None)
    output = file_lines(batch_worker.root, response["output_file_id"])
    assert len(output) == batch.counts().completed


async def test_a_batch_fails_if_its_input_is_removed_before_the_check(
    batch_worker: BatchWorker, input_file: Path
) -> None:
    body = {"path": "inbox/in.jsonl", "purpose": "batch"}
    file = await batch_worker.run_job({"route": "/v1/files", "method": "POST", "body": body})
    body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    create_job = {"route": "/v1/batches", "method": "POST", "body": body}
    batch = await batch_worker.run_job(create_job, "job-2")
    replace_file(input_file, None)
    response = (await batch_worker.run_job(batch["run_with"]["input"], "job-3"))["batch"]
    assert response["status"] == "failed"
    assert response["errors"]["data"][0]["code"] == "input_changed"


async def test_retention_keeps_the_inputs_of_unfinished_batches(batch_worker: BatchWorker) -> None:
    batch = await batch_worker.interrupted_batch()
    file_id = batch.request.input_file_id
    batches = Batches(settings(FILES_PATH=str(batch_worker.root), FILES_RETENTION_DAYS="0.000001"))
    meta = batch_worker.root / "worker" / "files" / file_id / "meta.json"
    stored = batches.files.get(file_id)
    meta.write_text(stored.model_copy(update={"expires_at": 1}).model_dump_json())
    assert (batches.files.sweep(batches.input_file_ids_in_use()), batches.sweep()) == (0, 0)
    assert (await batch_worker.run_batch("job-2", id=batch.id))["status"] == "completed"
    assert batches.files.sweep(batches.input_file_ids_in_use()) == 1


async def test_a_batch_that_is_removed_during_a_request_is_not_found(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await batch_worker.interrupted_batch()
    count = Batch.counts

    def remove_and_count(record: Batch) -> Any:
        shutil.rmtree(batch.directory)
        return count(record)

    monkeypatch.setattr(Batch, "counts", remove_and_count)
    with pytest.raises(NoSuchObject):
        batch.snapshot()
    assert all_records(batch_worker.batches) == []
