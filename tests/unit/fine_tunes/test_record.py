"""Status of a fine-tune according to its files, and the requests that each status allows."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fine_tunes import records_of

from worker.errors import Conflict, NoSuchObject
from worker.fine_tunes.record import (
    AdapterChoice,
    FailureReason,
    FineTune,
    FineTuneResult,
    FineTunes,
)
from worker.fine_tunes.spec import ATTEMPTS_DIR, EPOCHS_DIR, OUTCOME_FILE, Outcome
from worker.long_work.records import REQUEST

SUCCEEDED = FineTuneResult(status="succeeded", at=9, adapter="demo.a")
FAILED = FineTuneResult(status="failed", at=10, error=FailureReason(code="crashed", message="a"))
PUBLISHING = AdapterChoice(name="demo.a", attempt="000001.aa")


def acquire_lease(fine_tune: FineTune) -> None:
    """Acquire the lease, as a worker that runs the fine-tune does."""
    lease = fine_tune.lease_directory("run") / "lease-1"
    lease.parent.mkdir(parents=True)
    lease.touch()


def write_check(fine_tune: FineTune) -> None:
    fine_tune.write_file(f"{ATTEMPTS_DIR}/000001.aa/{OUTCOME_FILE}", Outcome())


def expect_refusals(fine_tune: FineTune, message: str) -> None:
    for change in (fine_tune.cancel, fine_tune.pause, fine_tune.resume):
        with pytest.raises(Conflict, match=message):
            change()


def end_if_due(fine_tune: FineTune) -> None:
    records_of(fine_tune).end_if_due(fine_tune)


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ((), "queued"),
        ((write_check,), "queued"),
        ((acquire_lease,), "validating_files"),
        ((acquire_lease, write_check), "running"),
        ((acquire_lease, write_check, FineTune.pause), "paused"),
        ((acquire_lease, write_check, FineTune.cancel, end_if_due), "running"),
        ((write_check, FineTune.cancel, end_if_due), "cancelled"),
        ((FineTune.pause, FineTune.cancel, end_if_due), "cancelled"),
    ],
)
def test_the_status_follows_from_the_lease_and_from_requests(
    fine_tune: FineTune, steps: tuple[Callable[[FineTune], Any], ...], status: str
) -> None:
    for step in steps:
        step(fine_tune)
    assert (fine_tune.status, fine_tune.has_ended()) == (status, status == "cancelled")


def test_a_fine_tune_can_be_paused_and_resumed_repeatedly(fine_tune: FineTune) -> None:
    for _ in range(3):
        fine_tune.pause()
        assert (fine_tune.status, fine_tune.stop_reason()) == ("paused", "paused")
        with pytest.raises(Conflict, match="is paused already"):
            fine_tune.pause()
        fine_tune.resume()
        assert (fine_tune.status, fine_tune.stop_reason()) == ("queued", None)
        with pytest.raises(Conflict, match="is not paused"):
            fine_tune.resume()


def test_a_cancelled_fine_tune_can_not_be_paused_and_does_not_fail(fine_tune: FineTune) -> None:
    fine_tune.cancel()
    assert (fine_tune.stop_reason(), fine_tune.decide_publishing(PUBLISHING)) == ("cancelled", None)
    with pytest.raises(Conflict, match="is cancelled already"):
        fine_tune.pause()
    assert fine_tune.end(FAILED).status == "cancelled"
    expect_refusals(fine_tune, "has been cancelled")


def test_nothing_stops_a_fine_tune_once_its_adapter_is_being_published(fine_tune: FineTune) -> None:
    assert fine_tune.decide_publishing(PUBLISHING) == PUBLISHING
    assert (
        fine_tune.decide_publishing(PUBLISHING.model_copy(update={"name": "demo.b"})) == PUBLISHING
    )
    expect_refusals(fine_tune, "is being published")
    assert not fine_tune.retention_start
    assert fine_tune.end(SUCCEEDED) == fine_tune.end(FAILED) == SUCCEEDED
    assert (fine_tune.status, FineTune(fine_tune.directory).retention_start) == ("succeeded", 9)


def test_a_late_cancel_is_refused(fine_tune: FineTune, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another worker ends the fine-tune after the check of the cancellation.
    monkeypatch.setattr(fine_tune, "_check_not_ended", lambda _: fine_tune.end(FAILED))
    with pytest.raises(Conflict, match="has failed"):
        fine_tune.cancel()
    assert fine_tune.stop_reason() is None


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOENT])
def test_a_fine_tune_ends_although_the_volume_fails_during_the_cleanup(
    fine_tune: FineTune, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    write_check(fine_tune)
    monkeypatch.setattr(Path, "iterdir", fail)
    assert fine_tune.end(SUCCEEDED) == SUCCEEDED


def test_only_the_events_of_attempts_remain_after_the_end(fine_tune: FineTune) -> None:
    attempt = fine_tune.directory / ATTEMPTS_DIR / "000001.aa"
    for name in ("checkpoints", "epochs", "tokens"):
        (attempt / name).mkdir(parents=True)
        (attempt / name / "large").write_text("weights")
    (attempt / "events.jsonl").write_text("")
    fine_tune.end(SUCCEEDED)
    assert [path.name for path in attempt.iterdir()] == ["events.jsonl"]


def test_attempts_are_sorted(fine_tune: FineTune) -> None:
    assert fine_tune.attempt_paths() == []
    for name in ("000010.bb", "000002.cc", ".new", "000001.dd"):
        (fine_tune.directory / ATTEMPTS_DIR / name).mkdir(parents=True)
    names = [path.name for path in fine_tune.attempt_paths()]
    assert names == ["000001.dd", "000002.cc", "000010.bb"]


def test_the_adapter_of_an_epoch_is_that_of_the_final_attempt_or_of_the_newest(
    fine_tune: FineTune,
) -> None:
    attempts = fine_tune.directory / ATTEMPTS_DIR
    for name in ("000001.a/5", "000002.b/5", "000002.b/20", "000003.c/20", "000001.a/.5.hidden"):
        attempt, step = name.split("/")
        (attempts / attempt / EPOCHS_DIR / step).mkdir(parents=True)
    found = fine_tune.epoch_adapter_directories(attempts / "000002.b")
    assert [*found.items()] == [
        (5, attempts / "000002.b" / EPOCHS_DIR / "5"),
        (20, attempts / "000002.b" / EPOCHS_DIR / "20"),
    ]
    found = fine_tune.epoch_adapter_directories(attempts / "000001.a")
    assert [path.parents[1].name for path in found.values()] == ["000001.a", "000003.c"]


def test_nothing_is_written_for_a_removed_fine_tune(fine_tune: FineTune) -> None:
    (fine_tune.directory / REQUEST).unlink()
    fine_tune.directory.rmdir()
    for change in (fine_tune.cancel, fine_tune.pause, fine_tune.resume):
        with pytest.raises(NoSuchObject):
            change()
    assert not fine_tune.directory.exists()


def test_rows_can_be_read_after_they_have_expired(
    fine_tunes: FineTunes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fine_tunes.files.receive(
        [b"{}"], filename="a.CSV", purpose="fine-tune", expires_after_s=3600
    )
    monkeypatch.setattr(time, "time", lambda: rows.created_at + 3600)
    data = fine_tunes.locate_rows(rows.id)
    assert (data.path.read_bytes(), data.form) == (b"{}", "csv")
