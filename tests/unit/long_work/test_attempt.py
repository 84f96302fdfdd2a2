"""Leases of attempts: one owner at a time, and a cancelled job leaves no lease behind."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from support.volume.disks import mount_disk, remount

from worker.batches.record import Batch
from worker.errors import VolumeError
from worker.long_work.attempt import Attempt
from worker.volume.lease import HEARTBEAT_S, MAX_UNCHANGED_POLLS, POLL_S, LeaseDirectory


def attempt_at(root: Path) -> Attempt:
    return Attempt(Batch(root), limit_s=60)


async def test_one_of_two_workers_acquires_a_lease_and_the_other_one_after_its_release(
    tmp_path: Path,
) -> None:
    attempt, other = attempt_at(tmp_path), attempt_at(tmp_path)
    async with attempt.acquire_lease("plan") as first:
        assert first is not None
        async with other.acquire_lease("plan") as second, other.acquire_lease("end") as third:
            assert second is None
            assert third is not None
    async with other.acquire_lease("plan") as second:
        assert second is not None
        assert second.owner != first.owner


async def test_a_lease_is_released_if_its_job_is_cancelled_at_any_moment(tmp_path: Path) -> None:
    async def work() -> None:
        async with attempt_at(tmp_path).acquire_lease("plan"):
            await asyncio.sleep(60)

    for waits in range(20):
        task = asyncio.create_task(work())
        for _ in range(waits):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        async with attempt_at(tmp_path).acquire_lease("plan") as lease:
            assert lease is not None


@pytest.mark.parametrize(("poll_s", "is_acquired"), [(0.0, True), (POLL_S, False)])
async def test_the_lease_of_a_dead_owner_is_taken_over_after_enough_polls_and_not_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poll_s: float, is_acquired: bool
) -> None:
    assert MAX_UNCHANGED_POLLS * POLL_S > 2 * HEARTBEAT_S
    monkeypatch.setattr("worker.long_work.attempt.POLL_S", poll_s)
    (tmp_path / "leases" / "plan").mkdir(parents=True)
    (tmp_path / "leases" / "plan" / "lease-7").write_text("{}")
    attempt = attempt_at(tmp_path)
    # The first poll has no earlier one to compare with.
    for _ in range(MAX_UNCHANGED_POLLS + 1):
        async with attempt.acquire_lease("plan") as lease:
            assert lease is None
    async with attempt.acquire_lease("plan") as lease:
        assert (lease is not None and lease.number == 8) is is_acquired


async def test_a_failing_poll_is_an_error_of_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LeaseDirectory) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(LeaseDirectory, "poll_claim", fail)
    async with attempt_at(tmp_path).acquire_lease("plan"):
        with pytest.raises(VolumeError, match="Stale"):
            async with attempt_at(tmp_path).acquire_lease("plan"):
                pass


async def test_a_lease_on_a_read_only_volume_is_an_error_of_the_volume(tmp_path: Path) -> None:
    with mount_disk(tmp_path / "disk", 1 << 20) as disk:
        remount(disk, "ro")
        with pytest.raises(VolumeError, match="read-only"):
            async with attempt_at(disk).acquire_lease("plan"):
                pass
