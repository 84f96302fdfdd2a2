"""The lists of long work for which workers have jobs, and the work that no worker runs."""

import os
import time
from pathlib import Path

import pytest
from support.engine.scripted import CHAT, settings
from support.processes.background import poll_until

from worker.batches.record import Batch, Batches, StoredBatch
from worker.errors import VolumeError
from worker.long_work.job_list import EXPECTED_S, REMOVAL_S, JobList, OrphanedWork
from worker.long_work.records import PAUSED
from worker.volume import Volume, ids, lease
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


@pytest.fixture
def old_batch(files_volume: Volume) -> Batch:
    """A batch whose job should have run it by now."""
    batches = Batches(settings(FILES_PATH=str(files_volume.root)))
    file = batches.files.receive([b"{}"], filename="a", purpose="batch")
    created_at = int(time.time() - EXPECTED_S)
    id = ids.new_id("batch_")
    return batches.create(
        StoredBatch(id=id, created_at=created_at, input_file_id=file.id, endpoint=CHAT)
    )


async def test_work_is_an_orphan_unless_this_worker_has_a_job_for_it(
    files_volume: Volume, old_batch: Batch
) -> None:
    jobs, other_jobs = JobList(files_volume), JobList(files_volume)
    work = old_batch.work_reference
    assert not jobs.has_job(old_batch)
    assert jobs.find_orphans([old_batch]) == [OrphanedWork(work, has_job=False)]
    async with jobs.add(old_batch.id):
        assert jobs.has_job(old_batch)
        assert other_jobs.has_job(old_batch)
        assert jobs.find_orphans([old_batch]) == []
        assert other_jobs.find_orphans([old_batch]) == [OrphanedWork(work, has_job=True)]


def test_new_paused_and_running_work_is_no_orphan(
    files_volume: Volume, old_batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = JobList(files_volume)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: old_batch.created_at + EXPECTED_S - 1)
        assert jobs.has_job(old_batch)
        assert jobs.find_orphans([old_batch]) == []
        patch.setattr(time, "time", lambda: old_batch.created_at + EXPECTED_S)
        assert not jobs.has_job(old_batch)
        assert jobs.find_orphans([old_batch])
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "stop_reason", lambda _: PAUSED)
        assert jobs.find_orphans([old_batch]) == []
    running = old_batch.lease_directory("plan") / "lease-1"
    running.parent.mkdir(parents=True)
    running.touch()
    assert jobs.find_orphans([old_batch]) == []
    silent_at = time.time() - SILENT_S - 1
    os.utime(running, (silent_at, silent_at))
    assert jobs.find_orphans([old_batch])
