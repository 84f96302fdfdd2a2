"""Leases taken by coroutines: one at a time, from the dead only, and never left behind."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from support.volume.disks import mounted, remount

from worker.errors import VolumeError
from worker.volume.lease import BEAT_S, LOOK_S, PATIENCE, Leases
from worker.volume.turns import Turns


def turns_in(root: Path) -> Turns:
    return Turns(lambda name: root / name, lambda: (1, 2))


async def test_one_of_two_workers_has_a_lease_and_then_the_next_one(tmp_path: Path) -> None:
    one, other = turns_in(tmp_path), turns_in(tmp_path)
    async with one.taken("plan") as first:
        assert first is not None
        async with other.taken("plan") as second, other.taken("end") as third:
            assert second is None
            assert third is not None
    async with other.taken("plan") as second:
        assert second is not None
        assert second.owner != first.owner


async def test_a_lease_that_is_taken_while_its_job_is_cancelled_is_released(tmp_path: Path) -> None:
    async def work() -> None:
        async with turns_in(tmp_path).taken("plan"):
            await asyncio.sleep(60)

    for waits in range(20):
        task = asyncio.create_task(work())
        for _ in range(waits):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        async with turns_in(tmp_path).taken("plan") as lease:
            assert lease is not None


@pytest.mark.parametrize(("look_s", "is_taken"), [(0.0, True), (LOOK_S, False)])
async def test_a_dead_owner_is_followed_after_as_many_looks_as_it_takes_and_not_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_s: float, is_taken: bool
) -> None:
    assert PATIENCE * LOOK_S > 2 * BEAT_S
    monkeypatch.setattr("worker.volume.turns.LOOK_S", look_s)
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "lease-7").write_text("{}")
    turns = turns_in(tmp_path)
    # The first look has nothing to compare with.
    for _ in range(PATIENCE + 1):
        async with turns.taken("plan") as lease:
            assert lease is None
    async with turns.taken("plan") as lease:
        assert (lease is not None and lease.attempt == 8) is is_taken


async def test_a_volume_that_fails_at_a_look_is_an_error_of_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Leases) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Leases, "look", fail)
    async with turns_in(tmp_path).taken("plan"):
        with pytest.raises(VolumeError, match="Stale"):
            async with turns_in(tmp_path).taken("plan"):
                pass


async def test_a_volume_that_can_not_be_written_to_is_an_error_of_it(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 1 << 20) as disk:
        remount(disk, "ro")
        with pytest.raises(VolumeError, match="read-only"):
            async with turns_in(disk).taken("plan"):
                pass
