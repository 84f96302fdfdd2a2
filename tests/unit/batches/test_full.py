"""Batches on full or read-only volumes: a clear error, and a later job continues the batch."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.batches import BatchWorker, batch_request
from support.engine.scripted import ScriptedEngine, tokens
from support.processes.background import poll_until
from support.volume import all_records, fill, mount_disk, remount

from worker import volume

DISK_BYTES = 4_000_000
COUNT = 200
JOB = {"batch": batch_request(COUNT)}


@pytest.fixture
def batch_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchWorker]:
    """A worker whose volume is a small disk without reserved space."""
    monkeypatch.setattr(volume, "MAX_RESERVED_BYTES", 0)
    with mount_disk(tmp_path / "disk", DISK_BYTES) as disk, ScriptedEngine(*tokens("a")) as engine:
        yield BatchWorker(disk, engine)


async def expect_full(batch_worker: BatchWorker, error: dict[str, Any]) -> None:
    """Check that a job failed on a full disk, and that a job completes after space is freed."""
    assert (error["code"], "the volume is full" in error["message"]) == (507, True)
    assert str(batch_worker.root) not in error["message"]
    (batch_worker.root / "filler").unlink()
    await expect_completed(batch_worker)


async def expect_completed(batch_worker: BatchWorker) -> None:
    batch_worker.engine.script = tuple(tokens("a"))
    batch = (await batch_worker.run_job(JOB))["batch"]
    assert batch["status"] == "completed"
    output, errors = batch_worker.results(batch)
    assert (list(output), errors) == ([f"c{index}" for index in range(COUNT)], {})


# The input has 7 pages, the answers have 15 or more, and each small file has one.
@pytest.mark.parametrize("pages", [0, 2, 12, 20])
async def test_a_batch_that_does_not_fit_continues_after_space_is_freed(
    batch_worker: BatchWorker, pages: int
) -> None:
    fill(batch_worker.root, pages * 4096)
    await expect_full(batch_worker, await batch_worker.job_error(JOB))


async def test_answers_survive_when_the_disk_fills_during_a_batch(
    batch_worker: BatchWorker,
) -> None:
    batch_worker.engine.script = tuple(tokens("a", "b", pause=0.05))
    job = asyncio.create_task(batch_worker.job_error(JOB))
    await poll_until(
        lambda: any(batch.counts().completed for batch in all_records(batch_worker.batches))
    )
    fill(batch_worker.root)
    error = await job
    stored_count = batch_worker.only_batch().counts().completed
    response = await batch_worker.get_batch(batch_worker.only_batch())
    assert response["request_counts"]["completed"] == stored_count > 0
    await expect_full(batch_worker, error)


async def test_a_batch_on_a_read_only_volume_can_be_read_but_not_continued(
    batch_worker: BatchWorker,
) -> None:
    batch = await batch_worker.interrupted_batch(COUNT)
    remount(batch_worker.root, "ro")
    error = await batch_worker.job_error(JOB)
    assert (error["code"], "read-only" in error["message"]) == (507, True)
    response = await batch_worker.get_batch(batch)
    assert response["status"] == "in_progress"
    assert response["request_counts"]["completed"] > 0
    remount(batch_worker.root, "rw")
    await expect_completed(batch_worker)


async def test_a_cancelled_batch_can_be_read_while_the_disk_is_too_full_to_end_it(
    batch_worker: BatchWorker,
) -> None:
    batch = await batch_worker.interrupted_batch(COUNT)
    batch.cancel()
    filler = fill(batch_worker.root)
    assert (await batch_worker.get_batch(batch))["status"] == "cancelling"
    filler.unlink()
    response = await batch_worker.get_batch(batch, "job-3")
    assert response["status"] == "cancelled"
    output, errors = batch_worker.results(response)
    assert len(output) + len(errors) == COUNT
