"""Objects that are directories on the volume: their files are written once, and are their state."""

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from worker.errors import Conflict, NoSuchObject, VolumeError
from worker.volume import Volume, check_space, failures, ids, write_once
from worker.volume.directories import vanish

log = logging.getLogger(__name__)

# In every directory: what was asked. It is the first file.
REQUEST = "request.json"
LEASES = "leases"

DAY_S = 24 * 3600
# Seconds after which a lease that nobody has rewritten keeps nobody from ending an object: that
# does no harm to one who lives, so that clocks may be compared.
STALE_S = 60.0

Model = TypeVar("Model", bound=BaseModel)


class Moment(BaseModel):
    """When something began, in seconds since 1970."""

    at: int


class Kept(BaseModel):
    """A request as the volume keeps it.

    Args:
        created_at: in seconds since 1970.
    """

    id: str
    created_at: int


class Record(ABC):
    """One object's directory. Its methods read and write files: call them in threads."""

    # What messages call such an object.
    noun: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = directory.name

    @property
    @abstractmethod
    def request(self) -> Kept:
        """What was asked.

        Raises:
            NoSuchObject: there is no such object.
        """

    @property
    def created_at(self) -> int:
        return self.request.created_at

    @abstractmethod
    def ended(self) -> bool: ...

    @property
    @abstractmethod
    def over_at(self) -> int | None:
        """When it is over, in seconds since 1970: then it is kept for a while; None: it is not."""

    def read(self, name: str, model: type[Model]) -> Model | None:
        """Return the content of a file; None if there is no such file.

        Raises:
            VolumeError: the file can't be read, or its content is not that of the model.
        """
        with failures():
            try:
                content = (self.directory / name).read_bytes()
            except FileNotFoundError:
                return None
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            raise VolumeError(f"the volume has a damaged {name} of {self.id}") from error

    def asked(self, model: type[Model]) -> Model:
        """Return what was asked; see ``request``."""
        if (found := self.read(REQUEST, model)) is None:
            raise NoSuchObject(f"There is no {self.noun} {self.id!r}.")
        return found

    def write(self, name: str, value: BaseModel) -> bool:
        """Write a file once; return whether it was not there."""
        with failures():
            return write_once(self.directory / name, value.model_dump_json().encode())

    def has(self, name: str) -> bool:
        with failures():
            return (self.directory / name).exists()

    def leases(self, name: str) -> Path:
        """Return the directory of the lease of a piece of the work."""
        return self.directory / LEASES / name

    def held(self, name: str = "*") -> bool:
        """Return whether a worker may be at work: a dead one's leases stay for a while.

        Args:
            name: of a piece of the work; else any.
        """
        oldest = time.time() - STALE_S
        with failures(), contextlib.suppress(FileNotFoundError):
            for path in self.directory.glob(f"{LEASES}/{name}/lease-*"):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime > oldest:
                        return True
        return False


R = TypeVar("R", bound=Record)
K = TypeVar("K", bound=Kept)


class Records(ABC, Generic[R, K]):
    """All objects of a kind on a volume. Its methods read and write files: call them in threads.

    Args:
        volume: where they are kept.
        retention_days: after which an ended one is removed; 0 keeps it.
    """

    # Of their ids; the directory they are in; what callers call an id.
    prefix: ClassVar[str]
    folder: ClassVar[str]
    param: ClassVar[str]

    def __init__(self, volume: Volume, retention_days: float) -> None:
        self.volume = volume
        self._retention_s = retention_days * DAY_S

    @abstractmethod
    def at(self, directory: Path) -> R:
        """Return the object that is a directory."""

    @abstractmethod
    def check(self, asked: K) -> None:
        """Check a request for a new object.

        Raises:
            RequestError: what it names is not there, or not for such an object.
        """

    def create(self, asked: K) -> R:
        """Create an object, or return the one that has its id: the job came twice.

        Raises:
            Conflict: another object has its id.
            RequestError: see ``check``.
        """
        one = self.at(self.root / asked.id)
        if not one.has(REQUEST):
            self.check(asked)
            check_space(self.root)
            one.write(REQUEST, asked)
        there = one.request
        # When it was asked for again does not matter.
        same = asked.model_copy(update={"created_at": there.created_at})
        if there.model_dump_json() != same.model_dump_json():
            raise Conflict(f"The {one.noun} {one.id!r}, of a job with the same id, is another one.")
        return one

    def has(self, id: str) -> bool:
        return ids.fits(self.prefix, id) and self.at(self.root / id).has(REQUEST)

    def get(self, id: str) -> R:
        """Find an object.

        Raises:
            NoSuchObject: there is none.
        """
        one = self.at(self.root / id)
        if not self.has(id):
            raise NoSuchObject(f"There is no {one.noun} with this id.", param=self.param)
        return one

    def all(self) -> list[R]:
        """Return all objects, the oldest first.

        Raises:
            VolumeError: the volume fails.
        """
        found = []
        for one in self._there():
            # Of those that are removed meanwhile, none.
            with contextlib.suppress(NoSuchObject):
                found.append((one.created_at, one.id, one))
        return [one for *_, one in sorted(found, key=lambda found_one: found_one[:2])]

    def unfinished(self) -> list[R]:
        """Return the objects that somebody has to work on, the oldest first."""
        return [one for one in self.all() if not one.ended()]

    def sweep(self) -> int:
        """Remove what ended long ago, and what nobody works on; return how many.

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
            places = [path.parent for path in self.root.glob(f"{self.prefix}*/{REQUEST}")]
        return [self.at(place) for place in places]

    @property
    def root(self) -> Path:
        """The directory that their directories are in."""
        return self.volume.directory(self.folder)
