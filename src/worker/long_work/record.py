"""One piece of long work on the volume: a directory whose files are written once, its state."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import BaseModel, Field, ValidationError

from worker.errors import NoSuchObject, VolumeError
from worker.long_work.kinds import LongWork
from worker.volume import failures, write_once

# In every directory: what was asked, the first file; how it is to end; how it has ended, the last.
REQUEST, DECISION, RESULT = "request.json", "decision.json", "result.json"
LEASES = "leases"
# Why nobody goes on with work that does not end.
PAUSED = "paused"

# Seconds after which a lease that nobody has rewritten keeps nobody from ending the work: that does
# no harm to an owner who lives, so that clocks may be compared.
STALE_S = 60.0

Model = TypeVar("Model", bound=BaseModel)


def now() -> int:
    """Return the time in seconds since 1970."""
    return int(time.time())


class Moment(BaseModel):
    """When something happened: now, unless it is said, in seconds since 1970."""

    at: int = Field(default_factory=now)


class StoredRequest(BaseModel):
    """A request as the volume has it; ``created_at`` is in seconds since 1970, by default now."""

    id: str
    created_at: int = Field(default_factory=now)

    @property
    def inputs(self) -> Mapping[str, str]:
        """The ids of the files that the work reads, by the fields that name them."""
        return {}


class Record(ABC):
    """One piece of work, a directory. Its methods read and write files: call them in threads."""

    # In the table of kinds, and in messages.
    kind: ClassVar[str]
    noun: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = directory.name

    @property
    @abstractmethod
    def request(self) -> StoredRequest:
        """What was asked.

        Raises:
            NoSuchObject: there is no such object.
        """

    @property
    @abstractmethod
    def over_at(self) -> int | None:
        """When it is over, in seconds since 1970: it is removed a while later; None: it is not."""

    @abstractmethod
    def stopping(self) -> str | None:
        """Return how it ends, or ``PAUSED``, if nobody is to go on with it."""

    @property
    def created_at(self) -> int:
        return self.request.created_at

    @property
    def work(self) -> LongWork:
        """What jobs run."""
        return LongWork(self.kind, self.id)

    def ended(self) -> bool:
        return self.has(RESULT)

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

    def require(self, name: str, model: type[Model]) -> Model:
        """Return the content of a file that each such object has; see ``read``.

        Raises:
            NoSuchObject: there is no such object, or it has just been removed.
        """
        if (found := self.read(name, model)) is None:
            raise NoSuchObject(f"There is no {self.noun} {self.id!r}.")
        return found

    def write(self, name: str, value: BaseModel) -> bool:
        """Write a file once; return whether it was not there."""
        with failures():
            return write_once(self.directory / name, value.model_dump_json().encode())

    def settle_on(self, name: str, value: Model) -> Model:
        """Write a file once; return its content, which is another's if that one was faster."""
        self.write(name, value)
        return self.require(name, type(value))

    def has(self, name: str) -> bool:
        with failures():
            return (self.directory / name).exists()

    def leases(self, name: str) -> Path:
        """Return the directory of the lease of a part of the work."""
        return self.directory / LEASES / name

    def held(self, name: str = "*") -> bool:
        """Return whether a worker may be at a part of the work, or at any.

        The leases of a dead one count for a while.
        """
        oldest = time.time() - STALE_S
        with failures(), contextlib.suppress(FileNotFoundError):
            for path in self.directory.glob(f"{LEASES}/{name}/lease-*"):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime > oldest:
                        return True
        return False
