"""All batches of a volume: created, found, listed, removed long after their end."""

import contextlib
import shutil
import time
from pathlib import Path

from worker.batches.lines import Limits
from worker.batches.request import Kept
from worker.batches.state import REQUEST, Batch
from worker.errors import Conflict, InvalidInput, NoSuchObject
from worker.files import Files
from worker.job.base import of_field
from worker.settings import Settings
from worker.volume import Volume, failures, ids

PREFIX = "batch_"
DAY_S = 24 * 3600


class Batches:
    """All batches of a volume. Its methods read and write files: call them in threads.

    Args:
        volume: where they are kept.
        files: their inputs and outputs.
        limits: of an input.
        retention_days: after which an ended batch is removed; 0 keeps it.
    """

    def __init__(self, volume: Volume, files: Files, limits: Limits, retention_days: float) -> None:
        self.files = files
        self.limits = limits
        self.volume = volume
        self._retention_s = retention_days * DAY_S

    @classmethod
    def of(cls, settings: Settings) -> "Batches":
        longest = round(settings.max_input_mb * 1_000_000)
        limits = Limits(settings.batch_max_requests, longest)
        files = Files.of(settings)
        return cls(Volume.of(settings), files, limits, settings.files_retention_days)

    def create(self, kept: Kept) -> Batch:
        """Create a batch, or return the one that has its id: the job came twice.

        Raises:
            Conflict: another batch has its id.
            InvalidInput: the input is no file for batches.
            NoSuchObject: there is no such file.
        """
        batch = Batch(self._directory / kept.id)
        if batch.has(REQUEST):
            return _same(batch, kept)
        with of_field("input_file_id"):
            file = self.files.get(kept.input_file_id)
            if file.purpose != "batch":
                raise InvalidInput(f"the file has the purpose {file.purpose!r}, not 'batch'")
        batch.write(REQUEST, kept)
        return _same(batch, kept)

    def has(self, batch_id: str) -> bool:
        return ids.fits(PREFIX, batch_id) and Batch(self._directory / batch_id).has(REQUEST)

    def get(self, batch_id: str) -> Batch:
        """Find a batch.

        Raises:
            NoSuchObject: there is none.
        """
        if not self.has(batch_id):
            raise NoSuchObject("There is no batch with this id.", param="batch_id")
        return Batch(self._directory / batch_id)

    def all(self) -> list[Batch]:
        """Return all batches, the oldest first."""
        with failures():
            places = [path.parent for path in self._directory.glob(f"{PREFIX}*/{REQUEST}")]
        found = []
        for batch in map(Batch, places):
            # Of those that are removed meanwhile, none.
            with contextlib.suppress(NoSuchObject):
                found.append((batch.created_at, batch.id, batch))
        return [batch for *_, batch in sorted(found, key=lambda one: one[:2])]

    def unfinished(self) -> list[Batch]:
        """Return the batches that somebody has to run, the oldest first."""
        return [batch for batch in self.all() if not batch.ended()]

    def inputs_in_use(self) -> set[str]:
        """Return the ids of the files that batches still read."""
        found = set()
        for batch in self.unfinished():
            with contextlib.suppress(NoSuchObject):
                found.add(batch.request.input_file_id)
        return found

    def sweep(self) -> int:
        """Remove batches that expired long ago, and that nobody runs; return how many."""
        oldest = time.time() - self._retention_s
        old = []
        for batch in self.all() if self._retention_s else ():
            with contextlib.suppress(NoSuchObject):
                if batch.request.expires_at < oldest and not batch.held():
                    old.append(batch)
        for batch in old:
            # Without its request it is gone, whatever else can't be removed.
            with failures():
                (batch.directory / REQUEST).unlink(missing_ok=True)
            shutil.rmtree(batch.directory, ignore_errors=True)
        return len(old)

    @property
    def _directory(self) -> Path:
        return self.volume.directory("batches")


def _same(batch: Batch, kept: Kept) -> Batch:
    """Return a batch that was asked for before, by the same request.

    Raises:
        Conflict: it was another one.
    """
    there = batch.request
    asked = kept.model_copy(update={"created_at": there.created_at})
    if there.model_dump_json() != asked.model_dump_json():
        raise Conflict(f"The batch {batch.id!r}, of a job with the same id, is another one.")
    return batch
