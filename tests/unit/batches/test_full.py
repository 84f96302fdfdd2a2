"""Volumes that are full or read-only at any moment of a batch: a clear error, and it goes on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.batches import answered, begun, given_up, lines, refused, results, worker_at
from support.disks import fill, mounted, remount
from support.engine.scripted import CHAT, ScriptedEngine, settings, tokens, until

from worker import volume
from worker.app import Worker
from worker.batches.state import Batch
from worker.batches.store import Batches

ROOM = 4_000_000
COUNT = 200
JOB = {"batch": {"requests": lines(COUNT), "endpoint": CHAT}}


@pytest.fixture(autouse=True)
def reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve nothing of the disk."""
    monkeypatch.setattr(volume, "RESERVED", 0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", ROOM) as place:
        yield place


def expect_full(error: dict[str, Any], disk: Path) -> None:
    assert error["code"] == 507
    assert "the volume is full" in error["message"]
    assert str(disk) not in error["message"]


async def completed(disk: Path) -> None:
    """Let the batch go on, and check that each line is answered."""
    with ScriptedEngine(*tokens("a")) as engine:
        batch = (await answered(worker_at(disk, engine), JOB))["batch"]
    assert batch["status"] == "completed"
    output, errors = results(disk, batch)
    assert (list(output), errors) == ([f"c{index}" for index in range(COUNT)], {})


@pytest.mark.parametrize("left", [0, 4096, 2 * 4096, 12 * 4096, 16 * 4096, 20 * 4096, 24 * 4096])
async def test_a_batch_that_does_not_fit_goes_on_when_there_is_room(disk: Path, left: int) -> None:
    # The input has 7 pages, the answers 15 and more; each of the small files has one.
    filler = fill(disk, left)
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(disk, engine)
        expect_full(await refused(worker, JOB), disk)
    filler.unlink()
    await completed(disk)


async def test_a_disk_that_becomes_full_while_lines_are_answered_keeps_them(disk: Path) -> None:
    with ScriptedEngine(*tokens("a", "b", pause=0.05)) as engine:
        engine.slots = 4
        worker = worker_at(disk, engine)
        running = asyncio.create_task(refused(worker, JOB))
        batches = Batches.of(settings(FILES_PATH=str(disk)))
        assert await until(lambda: any(one.counts().completed for one in batches.all()))
        filler = fill(disk)
        expect_full(await running, disk)
        (batch,) = batches.all()
        durable = batch.counts().completed
        path = f"/v1/batches/{batch.id}"
        shown = await answered(worker, {"route": path, "method": "GET"}, "job-2")
        assert shown["request_counts"]["completed"] == durable > 0
    filler.unlink()
    await completed(disk)


async def stopped(worker: Worker, engine: ScriptedEngine, disk: Path) -> Batch:
    """Run a batch and stop its job in the middle."""
    running = await begun(worker, engine, 20, **JOB["batch"])
    return await given_up(disk, engine, running)


async def test_a_batch_on_a_read_only_volume_is_shown_and_can_not_go_on(disk: Path) -> None:
    with ScriptedEngine(*tokens("a", "b", pause=0.05)) as engine:
        engine.slots = 4
        worker = worker_at(disk, engine)
        batch = await stopped(worker, engine, disk)
        remount(disk, "ro")
        error = await refused(worker, JOB)
        assert (error["code"], "read-only" in error["message"]) == (507, True)
        path = f"/v1/batches/{batch.id}"
        shown = await answered(worker, {"route": path, "method": "GET"}, "job-2")
        assert shown["status"] == "in_progress"
        assert shown["request_counts"]["completed"] > 0
        remount(disk, "rw")
    await completed(disk)


async def test_a_cancelled_batch_that_can_not_be_ended_is_shown(disk: Path) -> None:
    with ScriptedEngine(*tokens("a", "b", pause=0.05)) as engine:
        engine.slots = 4
        worker = worker_at(disk, engine)
        batch = await stopped(worker, engine, disk)
        batch.cancel()
        filler = fill(disk)
        get = {"route": f"/v1/batches/{batch.id}", "method": "GET"}
        assert (await answered(worker, get, "job-2"))["status"] == "cancelling"
        filler.unlink()
        shown = await answered(worker, get, "job-3")
    assert shown["status"] == "cancelled"
    output, errors = results(disk, shown)
    assert len(output) + len(errors) == COUNT
