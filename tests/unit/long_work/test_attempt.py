"""Leases taken by coroutines: one at a time, from the dead only, and never left behind."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from support.volume.disks import mounted, remount

from worker.batches.record import Batch
from worker.errors import VolumeError
from worker.long_work.attempt import Attempt
from worker.volume.lease import BEAT_S, LOOK_S, PATIENCE, Leases


def attempt_at(root: Path) -> Attempt:
    return Attempt(Batch(root), seconds=60)


async def test_one_of_two_workers_has_a_lease_and_then_the_next_one(tmp_path: Path) -> None:
    one, other = attempt_at(tmp_path), attempt_at(tmp_path)
    async with one.lease("plan") as first:
        assert first is not None
        async with other.lease("plan") as second, other.lease("end") as third:
            assert second is None
            assert third is not None
    async with other.lease("plan") as second:
        assert second is not None
        assert second.owner != first.owner


async def test_a_lease_that_is_taken_while_its_job_is_cancelled_is_released(tmp_path: Path) -> None:
    async def work() -> None:
        async with attempt_at(tmp_path).lease("plan"):
            await asyncio.sleep(60)

    for waits in range(20):
        task = asyncio.create_task(work())
        for _ in range(waits):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        async with attempt_at(tmp_path).lease("plan") as lease:
            assert lease is not None


@pytest.mark.parametrize(("look_s", "is_taken"), [(0.0, True), (LOOK_S, False)])
async def test_a_dead_owner_is_followed_after_as_many_looks_as_it_takes_and_not_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_s: float, is_taken: bool
) -> None:
    assert PATIENCE * LOOK_S > 2 * BEAT_S
    monkeypatch.setattr("worker.long_work.attempt.LOOK_S", look_s)
    (tmp_path / "leases" / "plan").mkdir(parents=True)
    (tmp_path / "leases" / "plan" / "lease-7").write_text("{}")
    attempt = attempt_at(tmp_path)
    # The first look has nothing to compare with.
    for _ in range(PATIENCE + 1):
        async with attempt.lease("plan") as lease:
            assert lease is None
    async with attempt.lease("plan") as lease:
        assert (lease is not None and lease.attempt == 8) is is_taken


async def test_a_volume_that_fails_at_a_look_is_an_error_of_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Leases) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Leases, "look", fail)
    async with attempt_at(tmp_path).lease("plan"):
        with pytest.raises(VolumeError, match="Stale"):
            async with attempt_at(tmp_path).lease("plan"):
                pass


async def test_a_volume_that_can_not_be_written_to_is_an_error_of_it(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 1 << 20) as disk:
        remount(disk, "ro")
        with pytest.raises(VolumeError, match="read-only"):
            async with attempt_at(disk).lease("plan"):
                pass
