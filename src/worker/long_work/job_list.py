"""The long work for which a worker has jobs of the platform, in a file that other workers read.

A job may wait for hours until its worker runs it, and has no lease meanwhile. Without this file,
callers would send another job.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import uuid4

from worker.volume import Volume
from worker.volume.durable import make_directory
from worker.volume.lease import SILENT_S, heartbeats

# Seconds after which the list of a dead worker is removed.
REMOVAL_S = 3600.0


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
        await asyncio.to_thread(self._change, id, 1)
        try:
            yield
        finally:
            await asyncio.to_thread(self._change, id, -1)

    def __contains__(self, id: str) -> bool:
        """Return whether this worker has a job for the work."""
        return id in self._ids

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

    def _change(self, id: str, change: int) -> None:
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
