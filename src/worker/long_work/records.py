"""Creates, finds, ends and removes the records of one kind of long work."""

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
from worker.validation import name_field_in_errors
from worker.volume import Volume, check_space, ids, translate_os_errors
from worker.volume.directories import remove_directory
from worker.volume.lease import LeaseDirectory

log = logging.getLogger(__name__)

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

    def __init__(self, settings: Settings) -> None:
        self.volume = Volume.from_settings(settings)
        self.files = Files.from_settings(settings)
        self._retention_s = settings.files_retention_days * DAY_S

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
        """
        record = self.record_type(self.root / request.id)
        if not record.has_file(REQUEST):
            self._check_inputs(request)
            check_space(self.root)
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

        A failure is only logged, because the caller may just want to read the record.
        """
        if record.has_ended():
            return True
        status = record.stop_reason()
        if status in {None, PAUSED} or record.is_leased():
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

    def list_all(self) -> list[RecordT]:
        """Return all records, oldest first.

        Raises:
            VolumeError: The volume fails.
        """
        by_age = {}
        for record in self._stored_records():
            # Skip records that are removed meanwhile.
            with contextlib.suppress(NoSuchObject):
                by_age[record.created_at, record.id] = record
        return [by_age[key] for key in sorted(by_age)]

    def list_unfinished(self) -> list[RecordT]:
        """Return the records of unfinished work, oldest first."""
        return [record for record in self.list_all() if not record.has_ended()]

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
        for record in self._stored_records() if self._retention_s else ():
            try:
                removed += self._remove_if_expired(record)
            except NoSuchObject:
                # Another worker is removing the record.
                continue
            except VolumeError as error:
                log.warning("%s %s could not be removed: %s", record.noun, record.id, error)
        return removed

    def _remove_if_expired(self, record: RecordT) -> bool:
        start, oldest = record.retention_start, time.time() - self._retention_s
        if start is None or start >= oldest or record.is_leased():
            return False
        with translate_os_errors():
            remove_directory(record.directory)
        return True

    def _stored_records(self) -> list[RecordT]:
        with translate_os_errors():
            requests = [*self.root.glob(f"{self.id_prefix}*/{REQUEST}")]
        return [self.record_type(path.parent) for path in requests]

    @property
    def root(self) -> Path:
        """Directory that contains all records."""
        return self.volume.worker_path(self.folder)
