"""Records of long work: directories of write-once files that are the state of the work."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, Field, ValidationError

from worker.errors import NoSuchObject, VolumeError
from worker.volume import translate_os_errors
from worker.volume.durable import write_once
from worker.volume.lease import SILENT_S, newest_lease_number
from worker.volume.pages import IndexEntry

# Files in every record: the request, written first; the decision how the work will end; and how it
# ended, written last.
REQUEST, DECISION, RESULT = "request.json", "decision.json", "result.json"
LEASES = "leases"
# Reason why jobs don't run work that is still unfinished.
PAUSED = "paused"

# Seconds after its last heartbeat until a lease no longer prevents the end of the work. Clocks of
# machines may be compared here, because ending the work does no harm to an owner that is alive.
STALE_S = 60.0

Model = TypeVar("Model", bound=BaseModel)


def unix_time() -> int:
    """Return the current time in whole seconds since 1970."""
    return int(time.time())


class TimedModel(BaseModel):
    """A model with the time of an event in seconds since 1970, by default the current time."""

    at: int = Field(default_factory=unix_time)


class StoredRequest(BaseModel):
    """A request on the volume, with its creation time in seconds since 1970."""

    id: str
    created_at: int = Field(default_factory=unix_time)

    @property
    def index_entry(self) -> IndexEntry:
        return IndexEntry(self.created_at, self.id, self.tag)

    @property
    def tag(self) -> str:
        """A property of the work by which lists are filtered; see ``IndexEntry``."""
        return ""

    @property
    def input_file_ids(self) -> Mapping[str, str]:
        """Ids of the files that the work reads, by the request fields that name them."""
        return {}


@dataclass(frozen=True, slots=True)
class WorkReference:
    """A reference to long work on the volume, by its id.

    Args:
        kind: Kind of the work; see ``Record.kind``.
        id: Id of the work.
        passes: Number of times that workers on other volumes have passed the work's job on.
    """

    kind: str
    id: str
    passes: int = 0

    def __str__(self) -> str:
        return f"{self.kind.replace('_', '-')} {self.id}"

    def job_input(self, **options: Any) -> dict[str, Any]:
        """Return the input of a job that continues the work, with the options of the job."""
        passes = {"passes": self.passes} if self.passes else {}
        return {self.kind: {"id": self.id, **passes, **options}}

    @property
    def run_with_field(self) -> dict[str, Any]:
        """Field of a response that contains the job which the caller has to send."""
        return {"run_with": {"input": self.job_input()}}


class Record(ABC):
    """The directory of one item of long work. Call its methods in threads: they access files."""

    # Key in the input of the jobs that run such work, and name in messages.
    kind: ClassVar[str]
    noun: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = directory.name

    @property
    @abstractmethod
    def request(self) -> StoredRequest:
        """The request for the work.

        Raises:
            NoSuchObject: The record doesn't exist.
        """

    @property
    @abstractmethod
    def retention_start(self) -> int | None:
        """Start of the retention period in seconds since 1970; None while the record must stay."""

    @abstractmethod
    def stop_reason(self) -> str | None:
        """Return how the work is going to end, or ``PAUSED``; None if jobs should run it."""

    @property
    def created_at(self) -> int:
        return self.request.created_at

    @property
    def work_reference(self) -> WorkReference:
        """Reference to the work, for jobs."""
        return WorkReference(self.kind, self.id)

    def has_ended(self) -> bool:
        return self.has_file(RESULT)

    def is_running(self) -> bool:
        """Return whether a worker is working on any part, by its heartbeats."""
        return self.is_leased(within_s=SILENT_S)

    def read_file(self, name: str, model: type[Model]) -> Model | None:
        """Return the content of a file; None if there is no such file.

        Raises:
            VolumeError: The file can't be read, or its content doesn't match the model.
        """
        with translate_os_errors():
            try:
                content = (self.directory / name).read_bytes()
            except FileNotFoundError:
                return None
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            raise VolumeError(f"the volume has a damaged {name} of {self.id}") from error

    def read_required_file(self, name: str, model: type[Model]) -> Model:
        """Return the content of a file that every record has; see ``read``.

        Raises:
            NoSuchObject: The record doesn't exist, or it has just been removed.
        """
        if (content := self.read_file(name, model)) is None:
            raise NoSuchObject(f"There is no {self.noun} {self.id!r}.")
        return content

    def write_file(self, name: str, value: BaseModel) -> bool:
        """Write a file unless it exists; return whether it was written."""
        with translate_os_errors():
            return write_once(self.directory / name, value.model_dump_json().encode())

    def write_or_read_file(self, name: str, value: Model) -> Model:
        """Write a file unless another job was faster; return the content of the file."""
        self.write_file(name, value)
        return self.read_required_file(name, type(value))

    def has_file(self, name: str) -> bool:
        with translate_os_errors():
            return (self.directory / name).exists()

    def lease_directory(self, name: str) -> Path:
        """Return the directory for the lease of a part of the work."""
        return self.directory / LEASES / name

    def death_count(self) -> int:
        """Return how many workers died one after another while they had the lease of a part."""
        with translate_os_errors():
            leases = [newest_lease_number(path) for path in self.directory.glob(f"{LEASES}/*")]
        return max(leases, default=1) - 1

    def is_leased(self, name: str = "*", within_s: float = STALE_S) -> bool:
        """Return whether a worker may be working on a part, by default on any part.

        The leases of a dead worker count for ``within_s`` seconds.
        """
        oldest = time.time() - within_s
        with translate_os_errors(), contextlib.suppress(FileNotFoundError):
            for path in self.directory.glob(f"{LEASES}/{name}/lease-*"):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime > oldest:
                        return True
        return False
