"""What batches and fine-tunes have in common: which there are, what they need, when they go."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from support.engine.scripted import CHAT, settings

from worker.batches.record import BatchResult, StoredBatch
from worker.batches.store import Batches
from worker.errors import Conflict, InvalidInput, NoSuchObject
from worker.files import DAY_S
from worker.fine_tunes.record import FineTunes
from worker.fine_tunes.request import FineTuneResult, StoredFineTune
from worker.long_work.record import RESULT, STALE_S, Record, StoredRequest
from worker.volume import ids

NOW, LATER_S = int(time.time()), 400 * DAY_S


class Kind(NamedTuple):
    """Objects of a kind: what a request for one has, how it ends, and what messages say of it."""

    of: Callable[..., Any]
    ask: Callable[..., StoredRequest]
    result: BaseModel
    purpose: str
    noun: str
    param: str
    field: str
    # How long one is not over after its creation, or its end.
    lasts_s: int


BATCH = Kind(
    Batches,
    lambda file_id, **keys: StoredBatch(input_file_id=file_id, endpoint=CHAT, **keys),
    BatchResult(status="completed", at=NOW),
    *("batch", "batch", "batch_id", "input_file_id"),
    lasts_s=DAY_S,
)
FINE_TUNE = Kind(
    FineTunes,
    lambda file_id, **keys: StoredFineTune(training_file=file_id, base="demo", **keys),
    FineTuneResult(status="failed", at=NOW),
    *("fine-tune", "fine-tuning job", "fine_tuning_job_id", "training_file"),
    lasts_s=0,
)


class Store:
    """The objects of a kind on a volume."""

    def __init__(self, kind: Kind, root: Path, days: int = 30) -> None:
        self.kind = kind
        environ = {"FILES_PATH": str(root), "FILES_RETENTION_DAYS": str(days)}
        self.records = kind.of(settings(**environ))

    def upload(self, purpose: str | None = None) -> str:
        purpose = purpose or self.kind.purpose
        id: str = self.records.files.receive([b"{}"], filename="a", purpose=purpose).id
        return id

    def ask(self, file_id: str | None = None, **keys: Any) -> StoredRequest:
        id = ids.new(self.records.prefix)
        return self.kind.ask(file_id or self.upload(), id=id, **{"created_at": NOW, **keys})

    def create(self, *, ended: bool = False) -> Record:
        one: Record = self.records.create(self.ask())
        if ended:
            one.write(RESULT, self.kind.result)
        return one


@pytest.fixture(params=[BATCH, FINE_TUNE], ids=["batch", "fine-tune"])
def record_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


def test_what_somebody_has_to_work_on_and_its_inputs_are_known(record_store: Store) -> None:
    file_id = record_store.upload()
    waiting = record_store.records.create(record_store.ask(file_id, created_at=NOW + 5))
    done = record_store.create(ended=True)
    assert [one.id for one in record_store.records.all()] == [done.id, waiting.id]
    assert [one.id for one in record_store.records.unfinished()] == [waiting.id]
    assert record_store.records.inputs_in_use() == {file_id}


def test_wrong_and_missing_files_are_refused_by_the_field(record_store: Store) -> None:
    with pytest.raises(InvalidInput) as refused:
        record_store.records.create(record_store.ask(record_store.upload("vision")))
    purposes = f"the file has the purpose 'vision', not {record_store.kind.purpose!r}"
    assert refused.value.message == f"{record_store.kind.field}: {purposes}"
    with pytest.raises(NoSuchObject, match="no file with this id") as missing:
        record_store.records.create(record_store.ask("file-nothing"))
    assert refused.value.param == missing.value.param == record_store.kind.field
    assert record_store.records.all() == []


def test_the_same_request_finds_the_same_object_and_another_is_refused(record_store: Store) -> None:
    first = record_store.ask()
    record_store.records.create(first)
    again = record_store.records.create(first.model_copy(update={"created_at": NOW + 7}))
    assert again.created_at == NOW
    with pytest.raises(Conflict) as refused:
        record_store.records.create(first.model_copy(update={"metadata": {"a": "b"}}))
    name = f"{record_store.kind.noun} {first.id!r}"
    assert refused.value.message == f"The {name}, of a job with the same id, is another one."


@pytest.mark.parametrize("end", ["", "../../etc", "a" * 24])
def test_there_is_none_with_any_other_id(record_store: Store, end: str) -> None:
    one = record_store.create()
    way = f"../{one.directory.parent.name}/{one.id}"
    for id in (f"{record_store.records.prefix}{end}", way):
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
        # A batch has a time.
        (False, 30, 400, (1, 0)),
        (True, 0, 4000, (0, 0)),
    ],
    ids=["kept", "over", "not ended", "for ever"],
)
def test_one_is_removed_when_it_was_over_as_long_ago_as_files_are_kept(
    record_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    ended: bool,
    retention: int,
    days: float,
    removed: tuple[int, int],
) -> None:
    one, kind = record_store.create(ended=ended), record_store.kind
    records = Store(kind, record_store.records.volume.root, retention).records
    monkeypatch.setattr(time, "time", lambda: NOW + kind.lasts_s + days * DAY_S)
    expected = removed[kind is FINE_TUNE]
    assert records.sweep() == expected
    assert (len(records.all()), one.directory.exists()) == (1 - expected, not expected)


def test_one_that_a_worker_may_be_at_is_not_removed_until_its_lease_is_old(
    record_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = record_store.create(ended=True)
    lease = one.leases("run") / "lease-1"
    lease.parent.mkdir(parents=True)
    lease.touch()
    monkeypatch.setattr(time, "time", lambda: NOW + LATER_S)
    for age_s, held in ((STALE_S - 1, True), (STALE_S + 1, False)):
        os.utime(lease, (NOW + LATER_S - age_s,) * 2)
        assert one.held() is held
        assert record_store.records.sweep() == (not held)


def test_one_that_another_worker_removes_keeps_nobody_from_removing_the_next(
    record_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        record_store.create(ended=True)
    asked: list[Record] = []

    def held(one: Record) -> bool:
        asked.append(one)
        if len(asked) == 1:
            raise NoSuchObject("removed")
        return False

    monkeypatch.setattr(Record, "held", held)
    monkeypatch.setattr(time, "time", lambda: NOW + LATER_S)
    assert record_store.records.sweep() == 1
