"""Records of batches and fine-tunes: creation, inputs in use, and retention."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from support.engine.scripted import CHAT, settings
from support.volume import all_records

from worker.batches.record import Batches, BatchResult, StoredBatch
from worker.errors import (
    Conflict,
    InvalidInput,
    NoSuchObject,
    TooMuchUnfinishedWork,
    VolumeError,
)
from worker.files import DAY_S
from worker.fine_tunes.record import FineTuneResult, FineTunes, StoredFineTune
from worker.long_work import records as record_types
from worker.long_work.records import RESULT, STALE_S, Record, StoredRequest
from worker.volume import ids

NOW, LATER_S = int(time.time()), 400 * DAY_S


class Kind(NamedTuple):
    """A kind of record: its requests, its result, and the words in its messages."""

    records_type: Callable[..., Any]
    make_request: Callable[..., StoredRequest]
    result: BaseModel
    purpose: str
    noun: str
    param: str
    field: str
    # Seconds from ``NOW`` until the retention of a record begins.
    retention_delay_s: int


BATCH = Kind(
    Batches,
    lambda file_id, **keys: StoredBatch(input_file_id=file_id, endpoint=CHAT, **keys),
    BatchResult(status="completed", at=NOW),
    *("batch", "batch", "batch_id", "input_file_id"),
    retention_delay_s=DAY_S,
)
FINE_TUNE = Kind(
    FineTunes,
    lambda file_id, **keys: StoredFineTune(training_file=file_id, base="demo", **keys),
    FineTuneResult(status="failed", at=NOW),
    *("fine-tune", "fine-tuning job", "fine_tuning_job_id", "training_file"),
    retention_delay_s=0,
)


class Store:
    """The records of a kind on a volume."""

    def __init__(self, kind: Kind, root: Path, days: int = 30, **environ: str) -> None:
        self.kind = kind
        environ |= {"FILES_PATH": str(root), "FILES_RETENTION_DAYS": str(days)}
        self.records = kind.records_type(settings(**environ))

    def upload(self, purpose: str | None = None) -> str:
        purpose = purpose or self.kind.purpose
        id: str = self.records.files.receive([b"{}"], filename="a", purpose=purpose).id
        return id

    def make_request(self, file_id: str | None = None, **keys: Any) -> StoredRequest:
        id = ids.new_id(self.records.id_prefix)
        return self.kind.make_request(
            file_id or self.upload(), id=id, **{"created_at": NOW, **keys}
        )

    def create(self, *, ended: bool = False) -> Record:
        record: Record = self.records.create(self.make_request())
        if ended:
            record.write_file(RESULT, self.kind.result)
        return record


@pytest.fixture(params=[BATCH, FINE_TUNE], ids=["batch", "fine-tune"])
def record_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


def test_unfinished_records_and_their_inputs_are_listed(record_store: Store) -> None:
    file_id = record_store.upload()
    waiting = record_store.records.create(record_store.make_request(file_id, created_at=NOW + 5))
    done = record_store.create(ended=True)
    assert [record.id for record in all_records(record_store.records)] == [done.id, waiting.id]
    assert [record.id for record in record_store.records.list_unfinished()] == [waiting.id]
    assert record_store.records.input_file_ids_in_use() == {file_id}


def test_wrong_and_missing_files_are_refused_with_the_field(record_store: Store) -> None:
    with pytest.raises(InvalidInput) as exc_info:
        record_store.records.create(record_store.make_request(record_store.upload("vision")))
    purposes = f"the file has the purpose 'vision', not {record_store.kind.purpose!r}"
    assert exc_info.value.message == f"{record_store.kind.field}: {purposes}"
    with pytest.raises(NoSuchObject, match="no file with this id") as missing:
        record_store.records.create(record_store.make_request("file-nothing"))
    assert exc_info.value.param == missing.value.param == record_store.kind.field
    assert all_records(record_store.records) == []


def test_the_same_request_returns_the_same_record_and_another_is_refused(
    record_store: Store,
) -> None:
    first = record_store.make_request()
    record_store.records.create(first)
    again = record_store.records.create(first.model_copy(update={"created_at": NOW + 7}))
    assert again.created_at == NOW
    with pytest.raises(Conflict) as exc_info:
        record_store.records.create(first.model_copy(update={"metadata": {"a": "b"}}))
    name = f"{record_store.kind.noun} {first.id!r}"
    assert exc_info.value.message == f"The {name} of an earlier job with the same id differs."


def test_too_many_unfinished_records_are_refused_until_some_have_ended(
    record_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_types, "MAX_UNFINISHED", 3)
    for _ in range(5):
        record_store.create(ended=True)
    unfinished = [record_store.create() for _ in range(3)]
    words = record_store.records.folder.replace("_", "-")
    with pytest.raises(TooMuchUnfinishedWork, match=f"^3 {words} of this endpoint") as exc_info:
        record_store.create()
    assert (exc_info.value.status, exc_info.value.retryable) == (429, True)
    # A repeated request is no new record.
    assert record_store.records.create(unfinished[0].request).id == unfinished[0].id
    unfinished[0].write_file(RESULT, record_store.kind.result)
    assert record_store.create()


def test_work_that_has_expired_makes_way_for_new_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_types, "MAX_UNFINISHED", 3)
    batches = Store(BATCH, tmp_path)
    file_id = batches.upload()
    for _ in range(3):
        request = batches.make_request(file_id, created_at=NOW - 2 * DAY_S)
        batches.records.create(request)
    batches.create()
    for _ in range(2):
        batches.create()
    with pytest.raises(TooMuchUnfinishedWork):
        batches.create()


def test_a_maximum_number_of_records_is_accepted(tmp_path: Path) -> None:
    for kind in (BATCH, FINE_TUNE):
        few = Store(kind, tmp_path, FILES_MAX_COUNT="4")
        request = few.make_request()
        for _ in range(4):
            few.records.create(few.make_request(request.input_file_ids[kind.field]))
        words = few.records.folder.replace("_", "-")
        with pytest.raises(VolumeError, match=rf"4 {words}, the maximum \(FILES_MAX_COUNT\)"):
            few.records.create(request)


def test_records_are_listed_in_pages(record_store: Store) -> None:
    file_id = record_store.upload()
    made = [
        record_store.records.create(record_store.make_request(file_id, created_at=NOW - age * 600))
        for age in range(7)
    ]
    records, listed, after, has_more = record_store.records, [], None, True
    while has_more:
        page = records.list_newest(after=after, limit=3)
        listed += [record.id for record in page.data]
        after, has_more = listed[-1], page.has_more
    assert listed == [record.id for record in made]
    even = records.list_newest(
        limit=2, accepts=lambda record: record.created_at % 1200 == NOW % 1200
    )
    assert ([record.id for record in even.data], even.has_more) == ([made[0].id, made[2].id], True)
    with pytest.raises(NoSuchObject, match="after: nothing"):
        records.list_newest(after=ids.new_id(records.id_prefix), limit=1)


@pytest.mark.parametrize("suffix", ["", "../../etc", "a" * 24])
def test_other_ids_are_not_found(record_store: Store, suffix: str) -> None:
    record = record_store.create()
    traversal = f"../{record.directory.parent.name}/{record.id}"
    for id in (f"{record_store.records.id_prefix}{suffix}", traversal):
        with pytest.raises(
            NoSuchObject, match=f"no {record_store.kind.noun} with this id"
        ) as missing:
            record_store.records.get(id)
        assert missing.value.param == record_store.kind.param


@pytest.mark.parametrize(
    ("ended", "retention", "days", "removed"),
    [
        (True, 30, 29.9, (0, 0)),
        (True, 30, 30.1, (1, 1)),
        # An unfinished batch expires, an unfinished fine-tune doesn't.
        (False, 30, 400, (1, 0)),
        (True, 0, 4000, (0, 0)),
    ],
    ids=["within retention", "after retention", "not ended", "unlimited retention"],
)
def test_a_record_is_removed_after_the_retention_of_files(
    record_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    ended: bool,
    retention: int,
    days: float,
    removed: tuple[int, int],
) -> None:
    record, kind = record_store.create(ended=ended), record_store.kind
    records = Store(kind, record_store.records.volume.root, retention).records
    monkeypatch.setattr(time, "time", lambda: NOW + kind.retention_delay_s + days * DAY_S)
    expected = removed[kind is FINE_TUNE]
    assert records.sweep() == expected
    assert (len(all_records(records)), record.directory.exists()) == (1 - expected, not expected)


def test_a_record_with_a_lease_is_not_removed_until_the_lease_is_stale(
    record_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_store.create(ended=True)
    lease = record.lease_directory("run") / "lease-1"
    lease.parent.mkdir(parents=True)
    lease.touch()
    monkeypatch.setattr(time, "time", lambda: NOW + LATER_S)
    for age_s, is_leased in ((STALE_S - 1, True), (STALE_S + 1, False)):
        os.utime(lease, (NOW + LATER_S - age_s,) * 2)
        assert record.is_leased() is is_leased
        assert record_store.records.sweep() == (not is_leased)


def test_a_record_that_another_worker_removes_does_not_stop_the_sweep(
    record_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        record_store.create(ended=True)
    checked: list[Record] = []

    def is_leased(record: Record) -> bool:
        checked.append(record)
        if len(checked) == 1:
            raise NoSuchObject("removed")
        return False

    monkeypatch.setattr(Record, "is_leased", is_leased)
    monkeypatch.setattr(time, "time", lambda: NOW + LATER_S)
    assert record_store.records.sweep() == 1
