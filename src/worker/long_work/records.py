"""All long work of a kind on the volume: created, found, ended and removed."""

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from worker.errors import Conflict, InvalidInput, NoSuchObject, VolumeError, WorkerError
from worker.files import DAY_S, Files
from worker.long_work.record import PAUSED, REQUEST, Record, StoredRequest
from worker.settings import Settings
from worker.validation import of_field
from worker.volume import Volume, check_space, failures, ids
from worker.volume.directories import vanish
from worker.volume.lease import Leases

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)
K = TypeVar("K", bound=StoredRequest)


class Records(ABC, Generic[R, K]):
    """All work of a kind on a volume. Its methods read and write files: call them in threads.

    Args:
        settings: name the volume, and the days after which a record that is over is removed.
    """

    record: type[R]
    # Of ids; the directory of all records; what callers call an id; of the files that are read.
    prefix: ClassVar[str]
    folder: ClassVar[str]
    param: ClassVar[str]
    purpose: ClassVar[str]

    def __init__(self, settings: Settings) -> None:
        self.volume = Volume.of(settings)
        self.files = Files.of(settings)
        self._retention_s = settings.files_retention_days * DAY_S

    @abstractmethod
    def end(self, one: R, how: Any) -> object:
        """End work that nobody is at, as its ``stopping`` says; return how it has ended."""

    def id_of(self, request_id: str) -> str:
        """Return the id that always follows from a job: the same job finds what it created."""
        return ids.derived(self.prefix, request_id)

    def create(self, request: K) -> R:
        """Create a record, or return the one that has its id: the job came twice.

        Raises:
            Conflict: another record has its id.
            InvalidInput: a file that it names has another purpose.
            NoSuchObject: there is no such file.
        """
        one = self.record(self.root / request.id)
        if not one.has(REQUEST):
            self._check_inputs(request)
            check_space(self.root)
            one.write(REQUEST, request)
        there = one.request
        # When it was asked for again does not matter.
        same = request.model_copy(update={"created_at": there.created_at})
        if there.model_dump_json() != same.model_dump_json():
            raise Conflict(f"The {one.noun} {one.id!r}, of a job with the same id, is another one.")
        return one

    def _check_inputs(self, request: K) -> None:
        for field, file_id in request.inputs.items():
            with of_field(field):
                found, wanted = self.files.get(file_id).purpose, self.purpose
                if found != wanted:
                    raise InvalidInput(f"the file has the purpose {found!r}, not {wanted!r}")

    def has(self, id: str) -> bool:
        return ids.fits(self.prefix, id) and self.record(self.root / id).has(REQUEST)

    def get(self, id: str) -> R:
        """Find a record.

        Raises:
            NoSuchObject: there is none.
        """
        one = self.record(self.root / id)
        if not self.has(id):
            raise NoSuchObject(f"There is no {one.noun} with this id.", param=self.param)
        return one

    def get_settled(self, id: str) -> R:
        """Find a record, and end it first if it is to end; see ``get`` and ``settle``."""
        one = self.get(id)
        self.settle(one)
        return one

    def settle(self, one: R) -> bool:
        """End work that is to end, unless a worker may be at it; return whether it has ended.

        If that fails, the work stays as it is: whoever only asks for it is not to get the error.
        """
        if one.ended():
            return True
        how = one.stopping()
        if how in {None, PAUSED} or one.held():
            return False
        # The lease of one who died while ending it is passed over.
        leases = Leases(one.leases("end"), patience=0)
        leases.look()
        try:
            with failures(), leases.taken() as lease:
                if lease and not one.ended():
                    self.end(one, how)
        except WorkerError as error:
            log.warning("%s %s can't be ended: %s", one.noun, one.id, error)
        return one.ended()

    def all(self) -> list[R]:
        """Return all records, the oldest first.

        Raises:
            VolumeError: the volume fails.
        """
        found = {}
        for one in self._there():
            # Of those that are removed meanwhile, none.
            with contextlib.suppress(NoSuchObject):
                found[one.created_at, one.id] = one
        return [found[age] for age in sorted(found)]

    def unfinished(self) -> list[R]:
        """Return the work that somebody has to go on with, the oldest first."""
        return [one for one in self.all() if not one.ended()]

    def inputs_in_use(self) -> set[str]:
        """Return the ids of the files that unfinished work reads."""
        found = set[str]()
        for one in self.unfinished():
            with contextlib.suppress(NoSuchObject):
                found.update(one.request.inputs.values())
        return found

    def sweep(self) -> int:
        """Remove what was over long ago, and what nobody works on; return how many.

        What the volume fails at stays until the next time.

        Raises:
            VolumeError: the directory can't be read.
        """
        removed = 0
        for one in self._there() if self._retention_s else ():
            try:
                removed += self._swept(one)
            except NoSuchObject:
                # Another worker is at it.
                continue
            except VolumeError as error:
                log.warning("%s %s could not be removed: %s", one.noun, one.id, error)
        return removed

    def _swept(self, one: R) -> bool:
        over_at, oldest = one.over_at, time.time() - self._retention_s
        if over_at is None or over_at >= oldest or one.held():
            return False
        with failures():
            vanish(one.directory)
        return True

    def _there(self) -> list[R]:
        with failures():
            requests = [*self.root.glob(f"{self.prefix}*/{REQUEST}")]
        return [self.record(path.parent) for path in requests]

    @property
    def root(self) -> Path:
        """The directory that their directories are in."""
        return self.volume.directory(self.folder)
