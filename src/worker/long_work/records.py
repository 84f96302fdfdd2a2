"""Creates, finds, ends and removes the records of one kind of long work."""

import contextlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

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
from worker.long_work.record import PAUSED, REQUEST, STALE_S, Record, StoredRequest
from worker.settings import Settings
from worker.validation import name_field_in_errors
from worker.volume import ids, translate_os_errors
from worker.volume.durable import remove_directory
from worker.volume.lease import SILENT_S, LeaseDirectory
from worker.volume.pages import IndexEntry, Page, TimeIndex, read_page, unknown_position_error

log = logging.getLogger(__name__)

# Maximum unfinished records of one kind on a volume, and seconds between two checks whether some of
# as many should end, for example because they have expired.
MAX_UNFINISHED = 1_000
END_CHECK_S = 60.0

# Number of workers that may die while they run the same work, one after another. Without a limit,
# work that kills its worker would be taken up by each new one.
MAX_DEATHS = 20

RecordT = TypeVar("RecordT", bound=Record)
RequestT = TypeVar("RequestT", bound=StoredRequest)


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
            self._check_inputs(request)
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

    def _check_inputs(self, request: RequestT) -> None:
        for field, file_id in request.input_file_ids.items():
            with name_field_in_errors(field):
                purpose, expected = self.files.get(file_id).purpose, self.input_purpose
                if purpose != expected:
                    raise InvalidInput(f"the file has the purpose {purpose!r}, not {expected!r}")

    def exists(self, id: str) -> bool:
        return ids.is_id(self.id_prefix, id) and self.record_type(self.root / id).has_file(REQUEST)

    def get(self, id: str) -> RecordT:
        """Return a record.

        Raises:
            NoSuchObject: No record has this id.
            OnOtherVolume: The record is on another volume.
        """
        record = self.record_type(self.root / id)
        if not self.exists(id):
            if ids.is_id(self.id_prefix, id):
                self.volume.location.check_name(record.noun, id, self.id_param)
            raise NoSuchObject(f"There is no {record.noun} with this id.", param=self.id_param)
        return record

    def get_ended_if_due(self, id: str) -> RecordT:
        """Return a record; if its work should end, end it first: see ``get`` and ``end_if_due``."""
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
            VolumeError: The volume fails.
        """
        if after is not None and not self.exists(after):
            raise unknown_position_error(after, self.volume.location)
        last = self.record_type(self.root / after).request.index_entry if after else None

        def find(entry: IndexEntry) -> RecordT | None:
            if tags is None or entry.tag in tags:
                # Skip records that are removed meanwhile.
                with contextlib.suppress(NoSuchObject):
                    record = self.record_type(self.root / entry.id)
                    if record.created_at == entry.created_at and accepts(record):
                        return record
            return None

        with translate_os_errors():
            return read_page(self._index.entries(after=last), find, limit)

    def list_unfinished(self) -> list[RecordT]:
        """Return the records of unfinished work, oldest first.

        Raises:
            VolumeError: The volume fails.
        """
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

        Raises:
            VolumeError: The directory can't be read.
        """
        removed = 0
        entries, unfinished = [], []
        for record in self._stored_records():
            try:
                if self._remove_if_expired(record):
                    removed += 1
                    continue
                entries.append(record.request.index_entry)
                if not record.has_ended():
                    unfinished.append(entries[-1])
            except NoSuchObject:
                # Another worker is removing the record.
                continue
            except VolumeError as error:
                log.warning("%s %s could not be removed: %s", record.noun, record.id, error)
        with translate_os_errors():
            self._index.repair(entries)
            self._unfinished.repair(unfinished)
        return removed

    def _remove_if_expired(self, record: RecordT) -> bool:
        start, oldest = record.retention_start, time.time() - self._retention_s
        if not self._retention_s or start is None or start >= oldest or record.is_leased():
            return False
        entry = record.request.index_entry
        with translate_os_errors():
            remove_directory(record.directory)
            for index in (self._index, self._unfinished):
                index.remove(entry)
        return True

    def _stored_records(self) -> list[RecordT]:
        with translate_os_errors():
            requests = [*self.root.glob(f"{self.id_prefix}*/{REQUEST}")]
        return [self.record_type(path.parent) for path in requests]

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
            # Some of the work has ended, and its entries are removed only by ``list_unfinished``.
            is_full = sum(1 for _ in self._unfinished.entries()) >= MAX_UNFINISHED
        if is_full and self._count_unfinished() >= MAX_UNFINISHED:
            raise TooMuchUnfinishedWork(
                f"{MAX_UNFINISHED:,} {noun} of this endpoint are unfinished, the maximum: wait "
                "until some of them have ended, or cancel some"
            )
        if record_count >= self.files.quota.max_files:
            raise too_many_error(self.files.quota.max_files, noun)

    def _count_unfinished(self) -> int:
        unfinished = self.list_unfinished()
        if time.monotonic() < self._ends_checked_at + END_CHECK_S:
            return len(unfinished)
        self._ends_checked_at = time.monotonic()
        return sum(not self.end_if_due(record) for record in unfinished)

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
