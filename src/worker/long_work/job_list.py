"""Finds the long work that no worker runs, and that for which workers have jobs of the platform.

A job may wait for hours until its worker runs it, and has no lease meanwhile. Each worker therefore
has a file on the volume that lists the work of its jobs. Without it, other workers and callers
would send another job.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from worker.long_work.records import PAUSED, Record, WorkReference, unix_time
from worker.volume import Volume, translate_os_errors
from worker.volume.durable import make_directory
from worker.volume.lease import SILENT_S, heartbeats

# Seconds after which the list of a dead worker is removed.
REMOVAL_S = 3600.0
# Seconds after the creation of work in which the job that created it is about to run it.
EXPECTED_S = SILENT_S


@dataclass(frozen=True, slots=True)
class OrphanedWork:
    """Unfinished work that no worker runs, and whether a job for it waits at another worker."""

    work: WorkReference
    has_job: bool


class JobList:
    """The list of this worker, with heartbeats while it has a job, and the lists of all workers.

    A list only informs: if it can't be written, the jobs run as usual.

    Args:
        volume: The volume, which may be missing.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._name = f"{uuid4().hex}.json"
        self._ids = Counter[str]()
        self._lock = threading.Lock()

    @contextlib.asynccontextmanager
    async def add(self, id: str) -> AsyncGenerator[None, None]:
        """Have the id of long work on the list during the block, once for each of its jobs."""
        await asyncio.to_thread(self._change_count, id, 1)
        try:
            yield
        finally:
            await asyncio.to_thread(self._change_count, id, -1)

    def has_job(self, work: Record) -> bool:
        """Return whether a worker that is alive has a job for work, or is about to have it."""
        with translate_os_errors():
            return _is_expected_to_run(work) or work.id in self.find_listed_ids()

    def find_orphans(self, unfinished: Iterable[Record]) -> list[OrphanedWork]:
        """Return the unfinished work that no worker runs, and that this worker has no job for.

        Work that is paused is left out, and new work, whose job is about to run it.
        """
        orphans = [
            work
            for work in unfinished
            if not _is_expected_to_run(work)
            and work.id not in self._ids
            and not work.is_running()
            and work.stop_reason() != PAUSED
        ]
        with translate_os_errors():
            listed = self.find_listed_ids() if orphans else ()
        return [OrphanedWork(work.work_reference, work.id in listed) for work in orphans]

    def find_listed_ids(self) -> set[str]:
        """Return the ids on the lists of all workers that are alive; blocks for files."""
        ids = set[str]()
        for path in self._directory.glob("*.json"):
            # A list that is being written or removed is complete at the next call.
            with contextlib.suppress(FileNotFoundError, ValueError):
                if path.stat().st_mtime > time.time() - SILENT_S:
                    ids.update(json.loads(path.read_bytes()))
        return ids

    def renew(self) -> None:
        """Write the list, which is a heartbeat."""
        with self._lock, contextlib.suppress(OSError):
            if self._ids:
                self._write()

    def release(self) -> None:
        """Remove the list, because this process is about to exit."""
        with self._lock, contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    @property
    def _directory(self) -> Path:
        return self._volume.worker_path("jobs")

    @property
    def _path(self) -> Path:
        return self._directory / self._name

    def _change_count(self, id: str, change: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            was_empty = not self._ids
            self._ids[id] += change
            self._ids += Counter[str]()  # drops the ids without a job
            if not self._ids:
                heartbeats.remove(self)
                self._path.unlink(missing_ok=True)
                return
            if was_empty:
                heartbeats.add(self)
                make_directory(self._directory)
                for path in self._directory.glob("*.json"):
                    with contextlib.suppress(FileNotFoundError):
                        if path.stat().st_mtime < time.time() - REMOVAL_S:
                            path.unlink()
            self._write()

    def _write(self) -> None:
        temporary = self._path.with_name(f".{self._name}")
        temporary.write_text(json.dumps([*self._ids]))
        temporary.replace(self._path)


def _is_expected_to_run(work: Record) -> bool:
    return unix_time() < work.created_at + EXPECTED_S
