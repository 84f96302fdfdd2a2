"""The lists of long work for which workers have jobs."""

import os
import time
from pathlib import Path

import pytest
from support.engine.scripted import settings
from support.processes.background import poll_until

from worker.errors import VolumeError
from worker.long_work.job_list import REMOVAL_S, JobList
from worker.volume import Volume, lease
from worker.volume.lease import SILENT_S


@pytest.fixture
def files_volume(tmp_path: Path) -> Volume:
    return Volume.from_settings(settings(FILES_PATH=str(tmp_path)))


def age(files_volume: Volume, seconds: float) -> None:
    """Let the heartbeats of all lists be some seconds old."""
    for path in files_volume.worker_path("jobs").iterdir():
        os.utime(path, (then := time.time() - seconds, then))


async def test_other_workers_see_the_work_of_each_worker_until_its_last_job_has_ended(
    files_volume: Volume,
) -> None:
    reader, first, second = (JobList(files_volume) for _ in range(3))
    assert reader.find_listed_ids() == set()
    async with second.add("c"):
        async with first.add("a"), first.add("b"):
            async with first.add("a"):
                assert reader.find_listed_ids() == {"a", "b", "c"}
            assert reader.find_listed_ids() == {"a", "b", "c"}
        assert reader.find_listed_ids() == {"c"}
    assert [*files_volume.worker_path("jobs").iterdir()] == []


async def test_a_list_counts_while_it_has_heartbeats(
    files_volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_S", 0.01)
    jobs = JobList(files_volume)
    async with jobs.add("a"):
        age(files_volume, SILENT_S + 1)
        await poll_until(jobs.find_listed_ids)
        # As after the death of its worker.
        lease.heartbeats.remove(jobs)

        def is_silent() -> bool:
            age(files_volume, SILENT_S + 1)
            return not jobs.find_listed_ids()

        await poll_until(is_silent)


async def test_the_list_of_a_dead_worker_is_removed_later(files_volume: Volume) -> None:
    dead = JobList(files_volume)
    async with dead.add("a"):
        lease.heartbeats.remove(dead)
        age(files_volume, REMOVAL_S + 1)
        async with JobList(files_volume).add("b"):
            assert len([*files_volume.worker_path("jobs").iterdir()]) == 1


async def test_a_worker_that_exits_removes_its_list(files_volume: Volume) -> None:
    jobs = JobList(files_volume)
    async with jobs.add("a"):
        lease.release_all_leases()
        assert jobs.find_listed_ids() == set()


async def test_a_list_that_can_not_be_written_prevents_no_job(files_volume: Volume) -> None:
    files_volume.worker_path("").mkdir()
    files_volume.worker_path("jobs").touch()
    async with JobList(files_volume).add("a"):
        pass


def test_lists_need_a_volume(tmp_path: Path) -> None:
    with pytest.raises(VolumeError):
        JobList(Volume(tmp_path / "none", may_create_root=False)).find_listed_ids()
