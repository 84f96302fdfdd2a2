"""How far a fine-tune is, as its files say it, and what may be asked of it then."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fine_tunes import records_of

from trainer.spec import ATTEMPTS, CHECKED, Checked
from worker.errors import Conflict, NoSuchObject
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.request import Error, FineTuneResult, Publishing
from worker.long_work.record import REQUEST

SUCCEEDED = FineTuneResult(status="succeeded", at=9, adapter="demo.a")
FAILED = FineTuneResult(status="failed", at=10, error=Error(code="crashed", message="a"))
PUBLISHING = Publishing(name="demo.a", attempt="000001.aa")


def hold(fine_tune: FineTune) -> None:
    """Take the lease, as a worker that is at it does."""
    lease = fine_tune.leases("run") / "lease-1"
    lease.parent.mkdir(parents=True)
    lease.touch()


def check(fine_tune: FineTune, attempt: str = "000001.aa", rows: int = 3) -> None:
    fine_tune.write(f"{ATTEMPTS}/{attempt}/{CHECKED}", Checked(rows=rows))


def refuses_all(fine_tune: FineTune, message: str) -> None:
    for ask in (fine_tune.cancel, fine_tune.pause, fine_tune.resume):
        with pytest.raises(Conflict, match=message):
            ask()


def settle(fine_tune: FineTune) -> None:
    records_of(fine_tune).settle(fine_tune)


@pytest.mark.parametrize(
    ("done", "status"),
    [
        ((), "queued"),
        ((check,), "queued"),
        ((hold,), "validating_files"),
        ((hold, check), "running"),
        ((hold, check, FineTune.pause), "paused"),
        ((hold, check, FineTune.cancel, settle), "running"),
        ((check, FineTune.cancel, settle), "cancelled"),
        ((FineTune.pause, FineTune.cancel, settle), "cancelled"),
    ],
)
def test_its_status_follows_from_who_works_on_it_and_what_was_asked(
    fine_tune: FineTune, done: tuple[Callable[[FineTune], Any], ...], status: str
) -> None:
    for act in done:
        act(fine_tune)
    assert (fine_tune.status, fine_tune.ended()) == (status, status == "cancelled")


def test_it_can_be_paused_and_resumed_again_and_again(fine_tune: FineTune) -> None:
    for _ in range(3):
        fine_tune.pause()
        assert (fine_tune.status, fine_tune.stopping()) == ("paused", "paused")
        with pytest.raises(Conflict, match="is paused already"):
            fine_tune.pause()
        fine_tune.resume()
        assert (fine_tune.status, fine_tune.stopping()) == ("queued", None)
        with pytest.raises(Conflict, match="is not paused"):
            fine_tune.resume()


def test_one_that_was_cancelled_can_not_be_stopped_and_does_not_fail(fine_tune: FineTune) -> None:
    fine_tune.cancel()
    assert (fine_tune.stopping(), fine_tune.decide(PUBLISHING)) == ("cancelled", None)
    with pytest.raises(Conflict, match="is cancelled already"):
        fine_tune.pause()
    assert fine_tune.end(FAILED).status == "cancelled"
    refuses_all(fine_tune, "has been cancelled")


def test_once_its_adapter_is_published_nothing_stops_it_and_it_ends(fine_tune: FineTune) -> None:
    assert fine_tune.decide(PUBLISHING) == PUBLISHING
    assert fine_tune.decide(PUBLISHING.model_copy(update={"name": "demo.b"})) == PUBLISHING
    refuses_all(fine_tune, "is being published")
    assert not fine_tune.over_at
    assert fine_tune.end(SUCCEEDED) == fine_tune.end(FAILED) == SUCCEEDED
    assert (fine_tune.status, FineTune(fine_tune.directory).over_at) == ("succeeded", 9)


def test_a_late_cancel_is_refused(fine_tune: FineTune, monkeypatch: pytest.MonkeyPatch) -> None:
    # The other one decides after the cancel has looked.
    monkeypatch.setattr(fine_tune, "_check_open", lambda _: fine_tune.end(FAILED))
    with pytest.raises(Conflict, match="has failed"):
        fine_tune.cancel()
    assert fine_tune.stopping() is None


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOENT])
def test_a_sick_volume_takes_nothing_from_an_end(
    fine_tune: FineTune, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    check(fine_tune)
    monkeypatch.setattr(Path, "iterdir", fail)
    assert fine_tune.end(SUCCEEDED) == SUCCEEDED


def test_at_its_end_only_the_events_of_the_attempts_stay(fine_tune: FineTune) -> None:
    place = fine_tune.directory / ATTEMPTS / "000001.aa"
    for name in ("checkpoints", "epochs", "result", "tokens"):
        (place / name).mkdir(parents=True)
        (place / name / "large").write_text("weights")
    (place / "events.jsonl").write_text("")
    fine_tune.end(SUCCEEDED)
    assert [path.name for path in place.iterdir()] == ["events.jsonl"]


def test_attempts_are_in_order_and_the_newest_check_counts(fine_tune: FineTune) -> None:
    assert fine_tune.attempts() == []
    for name in ("000010.bb", "000002.cc", ".new", "000001.dd"):
        (fine_tune.directory / ATTEMPTS / name).mkdir(parents=True)
    names = [path.name for path in fine_tune.attempts()]
    assert names == ["000001.dd", "000002.cc", "000010.bb"]
    check(fine_tune, "000001.dd")
    check(fine_tune, "000002.cc", rows=4)
    assert fine_tune.checked == Checked(rows=4)


def test_nothing_is_written_for_one_that_is_not_there(fine_tune: FineTune) -> None:
    (fine_tune.directory / REQUEST).unlink()
    fine_tune.directory.rmdir()
    for ask in (fine_tune.cancel, fine_tune.pause, fine_tune.resume):
        with pytest.raises(NoSuchObject):
            ask()
    assert not fine_tune.directory.exists()


def test_its_rows_are_there_after_they_have_expired(
    fine_tunes: FineTunes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fine_tunes.files.receive(
        [b"{}"], filename="a.CSV", purpose="fine-tune", expires_after_s=3600
    )
    monkeypatch.setattr(time, "time", lambda: rows.created_at + 3600)
    data = fine_tunes.data(rows.id)
    assert (data.path.read_bytes(), data.form) == (b"{}", "csv")
