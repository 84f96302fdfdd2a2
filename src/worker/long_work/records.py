"""Records of long work: directories of write-once files that are the state of the work.

A ``Record`` is the directory of one item of long work; ``Records`` creates, finds, ends and removes
the records of one kind.
"""

import contextlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, Field, ValidationError

from worker.errors import (
    Conflict,
    InvalidInput,
    NoSuchObject,
    TooMuchUnfinishedWork,
    VolumeError,
    WorkerError,
)
from worker.files import DAY_S, Files
from worker.files.quota import FILE_OVERHEAD, too_many_error
from worker.settings import Settings
from worker.validation import name_field_in_errors
from worker.volume import ids, translate_os_errors
from worker.volume.durable import remove_directory, write_once
from worker.volume.lease import SILENT_S, LeaseDirectory, newest_lease_number
from worker.volume.pages import IndexEntry, Page, TimeIndex, read_page, unknown_position_error

log = logging.getLogger(__name__)

# Files in every record: the request, written first; the decision how the work will end; and how it
# ended, written last.
REQUEST, DECISION, RESULT = "request.json", "decision.json", "result.json"
LEASES = "leases"
# Reason why jobs don't run work that is still unfinished.
PAUSED = "paused"

# Seconds after its last heartbeat until a lease no longer prevents the end of the work. Clocks of
# machines may be compared here, because ending the work does no harm to an owner that is alive.
STALE_S = 60.0
# Maximum unfinished records of one kind on a volume, and seconds between two checks whether some of
# as many should end, for example because they have expired.
MAX_UNFINISHED = 1_000
END_CHECK_S = 60.0

# Number of workers that may die while they run the same work, one after another. Without a limit,
# work that kills its worker would be taken up by each new one.
MAX_DEATHS = 20

Model = TypeVar("Model", bound=BaseModel)
RecordT = TypeVar("RecordT", bound="Record")
RequestT = TypeVar("RequestT", bound="StoredRequest")


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
        """Return the content of a file; raise ``NoSuchObject`` if the record has been removed."""
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


class Records(ABC, Generic[RecordT, RequestT]):
    """All records of one kind on a volume. Its methods read and write files: call them in threads.

    The volume and the retention period are settings; without a period, records are never removed.
    """

    record_type: type[RecordT]
    # Prefix of ids, directory of all records, name of the id parameter, and purpose of input files.
    id_prefix: ClassVar[str]
    folder: ClassVar[str]
    id_param: ClassVar[str]
    input_purpose: ClassVar[str]

    def __init__(self, settings: Settings, files: Files | None = None) -> None:
        self.files = files or Files.from_settings(settings)
        self.volume = self.files.volume
        self._retention_s = settings.files_retention_days * DAY_S
        self._ends_checked_at = -math.inf

    @abstractmethod
    def end(self, record: RecordT, status: Any) -> object:
        """End work with a status, for example its ``stop_reason``; return the result."""

    def id_for_job(self, request_id: str) -> str:
        """Return an id derived from a job's id: a retry of the job finds the same record."""
        return self.volume.location.derive_id(self.id_prefix, request_id)

    def create(self, request: RequestT) -> RecordT:
        """Create a record, or return the existing one if the job was sent twice.

        Raises:
            Conflict: Another request has the same id.
            InvalidInput: An input file has another purpose.
            NoSuchObject: An input file doesn't exist.
            TooMuchUnfinishedWork: Too many records are unfinished.
            VolumeError: The volume fails, or has too many records.
        """
        record = self.record_type(self.root / request.id)
        if not record.has_file(REQUEST):
            for field, file_id in request.input_file_ids.items():
                with name_field_in_errors(field):
                    purpose, expected = self.files.get(file_id).purpose, self.input_purpose
                    if purpose != expected:
                        raise InvalidInput(
                            f"the file has the purpose {purpose!r}, not {expected!r}"
                        )
            self.check_room_for(request.id)
            self.files.quota.reserve(FILE_OVERHEAD)
            with translate_os_errors():
                for index in (self._index, self._unfinished):
                    index.add(request.index_entry)
            record.write_file(REQUEST, request)
        stored = record.request
        # The creation time of a retry may differ.
        same = request.model_copy(update={"created_at": stored.created_at})
        if stored.model_dump_json() != same.model_dump_json():
            raise Conflict(
                f"The {record.noun} {record.id!r} of an earlier job with the same id differs."
            )
        return record

    def exists(self, id: str) -> bool:
        return ids.is_id(self.id_prefix, id) and self.record_type(self.root / id).has_file(REQUEST)

    def get(self, id: str) -> RecordT:
        """Return a record; raise ``OnOtherVolume`` if its id is of another volume."""
        record = self.record_type(self.root / id)
        if not self.exists(id):
            if ids.is_id(self.id_prefix, id):
                self.volume.location.check_name(record.noun, id, self.id_param)
            raise NoSuchObject(f"There is no {record.noun} with this id.", param=self.id_param)
        return record

    def get_ended_if_due(self, id: str) -> RecordT:
        """Return a record; if its work should end, end it first."""
        record = self.get(id)
        self.end_if_due(record)
        return record

    def end_if_due(self, record: RecordT) -> bool:
        """End work that should end, unless a worker may be running it; return whether it has ended.

        Work that has probably killed ``MAX_DEATHS`` workers ends as failed.
        A failure is only logged, because the caller may just want to read the record.
        """
        if record.has_ended():
            return True
        status, silent_s = record.stop_reason(), STALE_S
        if status is None and record.death_count() >= MAX_DEATHS:
            status, silent_s = "failed", SILENT_S
        if status in {None, PAUSED} or record.is_leased(within_s=silent_s):
            return False
        # The lease of a worker that died while ending the work is ignored.
        leases = LeaseDirectory(record.lease_directory("end"), max_unchanged=0)
        leases.poll_claim()
        try:
            with translate_os_errors(), leases.acquire() as lease:
                if lease and not record.has_ended():
                    self.end(record, status)
        except WorkerError as error:
            log.warning("%s %s can't be ended: %s", record.noun, record.id, error)
        return record.has_ended()

    def list_newest(
        self,
        *,
        after: str | None = None,
        limit: int,
        tags: Container[str] | None = None,
        accepts: Callable[[RecordT], bool] = lambda _: True,
    ) -> Page[RecordT]:
        """Return a page of the records, newest first.

        Args:
            after: Id of the last record on the previous page; None for the first page.
            limit: Maximum number of records on the page.
            tags: Tags of the records' requests; None for any.
            accepts: Returns whether a record belongs to the list. Unlike ``tags``, this reads all
                records until the page is full.

        Raises:
            NoSuchObject: No record has the id ``after``.
            OnOtherVolume: The record ``after`` is on another volume.
        """
        if after is not None and not self.exists(after):
            raise unknown_position_error(after, self.volume.location)
        last = self.record_type(self.root / after).request.index_entry if after else None

        def find(entry: IndexEntry) -> RecordT | None:
            if tags is None or entry.tag in tags:
                # Skip records that are removed meanwhile, and entries of those that another attempt
                # has created.
                with contextlib.suppress(NoSuchObject):
                    record = self.record_type(self.root / entry.id)
                    if record.created_at == entry.created_at and accepts(record):
                        return record
            return None

        with translate_os_errors():
            return read_page(self._index.entries(after=last), find, limit)

    def list_unfinished(self) -> list[RecordT]:
        """Return the records of unfinished work, oldest first."""
        unfinished = []
        with translate_os_errors():
            for entry in self._unfinished.entries(order="asc"):
                record = self.record_type(self.root / entry.id)
                if record.has_ended():
                    # The end of the work does not remove the entry: a worker may be killed.
                    with contextlib.suppress(OSError):
                        self._unfinished.remove(entry)
                elif record.has_file(REQUEST):
                    unfinished.append(record)
        return unfinished

    def input_file_ids_in_use(self) -> set[str]:
        """Return the ids of the files that unfinished work reads."""
        file_ids = set[str]()
        for record in self.list_unfinished():
            with contextlib.suppress(NoSuchObject):
                file_ids.update(record.request.input_file_ids.values())
        return file_ids

    def sweep(self) -> int:
        """Remove the expired records that no worker is using; return the number of removed records.

        Records that can't be removed stay until the next call.
        """
        with translate_os_errors():
            requests = [*self.root.glob(f"{self.id_prefix}*/{REQUEST}")]
        removed, expiry = 0, time.time() - self._retention_s
        entries, unfinished = [], []
        for record in (self.record_type(path.parent) for path in requests):
            try:
                entry, start = record.request.index_entry, record.retention_start
                has_expired = self._retention_s and start is not None and start < expiry
                if has_expired and not record.is_leased():
                    with translate_os_errors():
                        remove_directory(record.directory)
                        for index in (self._index, self._unfinished):
                            index.remove(entry)
                    removed += 1
                    continue
                entries.append(entry)
                if not record.has_ended():
                    unfinished.append(entry)
            except NoSuchObject:
                # Another worker is removing the record.
                continue
            except VolumeError as error:
                log.warning("%s %s could not be removed: %s", record.noun, record.id, error)
        with translate_os_errors():
            self._index.repair(entries)
            self._unfinished.repair(unfinished)
        return removed

    def check_room_for(self, id: str) -> None:
        """Check that there may be a record with this id, before its inputs are stored.

        Raises:
            TooMuchUnfinishedWork: Too many records are unfinished.
            VolumeError: The volume fails, or there are too many records.
        """
        if self.exists(id):
            return
        noun = self.folder.replace("_", "-")
        with translate_os_errors():
            record_count = sum(1 for _ in self.root.glob(f"{self.id_prefix}*"))
            unfinished_count = sum(1 for _ in self._unfinished.entries())
        if unfinished_count >= MAX_UNFINISHED:
            # Some of the work has ended, and its entries are removed only by ``list_unfinished``.
            unfinished = self.list_unfinished()
            unfinished_count = len(unfinished)
            if time.monotonic() >= self._ends_checked_at + END_CHECK_S:
                self._ends_checked_at = time.monotonic()
                unfinished_count = sum(not self.end_if_due(record) for record in unfinished)
        if unfinished_count >= MAX_UNFINISHED:
            raise TooMuchUnfinishedWork(
                f"{MAX_UNFINISHED:,} {noun} of this endpoint are unfinished, the maximum: wait "
                "until some of them have ended, or cancel some"
            )
        if record_count >= self.files.quota.max_files:
            raise too_many_error(self.files.quota.max_files, noun)

    @property
    def _index(self) -> TimeIndex:
        return TimeIndex(self.volume.worker_path(f"index/{self.folder}"))

    @property
    def _unfinished(self) -> TimeIndex:
        """Index of the unfinished records, and of some that have ended: always read completely."""
        return TimeIndex(self.volume.worker_path(f"index/{self.folder}-unfinished"), spans=())

    @property
    def root(self) -> Path:
        """Directory that contains all records."""
        return self.volume.worker_path(self.folder)
