"""Volumes that are full or read-only at any moment of a batch: a clear error, and it goes on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.batches import Batching, of_lines
from support.engine.scripted import ScriptedEngine, tokens
from support.processes.background import eventually
from support.volume.disks import fill, mounted, remount

from worker import volume

ROOM = 4_000_000
COUNT = 200
JOB = {"batch": of_lines(COUNT)}


@pytest.fixture
def batching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batching]:
    """A worker whose volume is a disk, of which nothing is reserved."""
    monkeypatch.setattr(volume, "RESERVED", 0)
    with mounted(tmp_path / "disk", ROOM) as disk, ScriptedEngine(*tokens("a")) as engine:
        yield Batching(disk, engine)


async def expect_full(batching: Batching, error: dict[str, Any]) -> None:
    """Check that a job has failed for the disk, and that with room one answers all."""
    assert (error["code"], "the volume is full" in error["message"]) == (507, True)
    assert str(batching.root) not in error["message"]
    (batching.root / "filler").unlink()
    await expect_completed(batching)


async def expect_completed(batching: Batching) -> None:
    batching.engine.script = tuple(tokens("a"))
    batch = (await batching.answered(JOB))["batch"]
    assert batch["status"] == "completed"
    output, errors = batching.results(batch)
    assert (list(output), errors) == ([f"c{index}" for index in range(COUNT)], {})


# The input has 7 pages, the answers 15 and more; each of the small files has one.
@pytest.mark.parametrize("pages", [0, 1, 2, 12, 16, 20, 24])
async def test_a_batch_that_does_not_fit_goes_on_with_room(batching: Batching, pages: int) -> None:
    fill(batching.root, pages * 4096)
    await expect_full(batching, await batching.refused(JOB))


async def test_a_disk_that_fills_while_lines_are_answered_keeps_them(batching: Batching) -> None:
    batching.engine.script = tuple(tokens("a", "b", pause=0.05))
    running = asyncio.create_task(batching.refused(JOB))
    await eventually(lambda: any(one.counts().completed for one in batching.batches.all()))
    fill(batching.root)
    error = await running
    durable = batching.only().counts().completed
    found = await batching.get(batching.only())
    assert found["request_counts"]["completed"] == durable > 0
    await expect_full(batching, error)


async def test_a_batch_on_a_read_only_volume_is_shown_and_can_not_go_on(batching: Batching) -> None:
    batch = await batching.in_the_middle(COUNT)
    remount(batching.root, "ro")
    error = await batching.refused(JOB)
    assert (error["code"], "read-only" in error["message"]) == (507, True)
    found = await batching.get(batch)
    assert found["status"] == "in_progress"
    assert found["request_counts"]["completed"] > 0
    remount(batching.root, "rw")
    await expect_completed(batching)


async def test_a_cancelled_batch_that_can_not_be_ended_is_shown(batching: Batching) -> None:
    batch = await batching.in_the_middle(COUNT)
    batch.cancel()
    filler = fill(batching.root)
    assert (await batching.get(batch))["status"] == "cancelling"
    filler.unlink()
    found = await batching.get(batch, "job-3")
    assert found["status"] == "cancelled"
    output, errors = batching.results(found)
    assert len(output) + len(errors) == COUNT
