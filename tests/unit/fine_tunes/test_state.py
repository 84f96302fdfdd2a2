"""How far a fine-tune is, as its files say it, and what may be asked of it then."""

import errno
import os
import time
from pathlib import Path

import pytest

from worker.errors import Conflict, NoSuchObject
from worker.fine_tunes.request import Error, Kept, Publishing, Result, Source
from worker.fine_tunes.state import FineTune
from worker.trainer.spec import ATTEMPTS, CHECKED, Checked
from worker.volume.record import REQUEST, STALE_S


@pytest.fixture
def fine_tune(tmp_path: Path) -> FineTune:
    found = FineTune(tmp_path / "ftjob-a")
    kept = Kept(id=found.id, created_at=5, base="demo", training=Source(file_id="file-a"))
    found.write(REQUEST, kept)
    return found


def hold(fine_tune: FineTune) -> Path:
    lease = fine_tune.leases() / "lease-1"
    lease.parent.mkdir(parents=True)
    lease.touch()
    return lease


def check(fine_tune: FineTune, attempt: str = "000001.aa") -> None:
    fine_tune.write(f"{ATTEMPTS}/{attempt}/{CHECKED}", Checked(rows=3))


SUCCEEDED = Result(status="succeeded", at=9, adapter="demo.a")
FAILED = Result(status="failed", at=10, error=Error(code="crashed", message="a"))
PUBLISHING = Publishing(name="demo.a", attempt="000001.aa")


def test_what_nobody_works_on_is_queued_whatever_was_done(fine_tune: FineTune) -> None:
    assert fine_tune.status == "queued"
    check(fine_tune)
    assert fine_tune.status == "queued"


def test_it_validates_files_until_a_look_at_the_data_is_over_and_then_runs(
    fine_tune: FineTune,
) -> None:
    hold(fine_tune)
    assert fine_tune.status == "validating_files"
    check(fine_tune)
    assert fine_tune.status == "running"


def test_a_lease_that_nobody_rewrites_holds_nothing(fine_tune: FineTune) -> None:
    lease = hold(fine_tune)
    os.utime(lease, (then := time.time() - STALE_S - 1, then))
    assert fine_tune.status == "queued"


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


def test_one_that_nobody_works_on_is_cancelled_at_once(fine_tune: FineTune) -> None:
    fine_tune.pause()
    fine_tune.cancel()
    assert fine_tune.stopping() == "cancelled"
    assert not fine_tune.ended()
    fine_tune.settle()
    assert (fine_tune.status, fine_tune.ended()) == ("cancelled", True)
    for ask in (fine_tune.cancel, fine_tune.pause, fine_tune.resume):
        with pytest.raises(Conflict, match="has been cancelled"):
            ask()


def test_one_that_somebody_works_on_is_cancelled_by_them(fine_tune: FineTune) -> None:
    hold(fine_tune)
    check(fine_tune)
    fine_tune.cancel()
    fine_tune.settle()
    assert (fine_tune.status, fine_tune.ended()) == ("running", False)
    with pytest.raises(Conflict, match="cancelled already"):
        fine_tune.pause()


def test_once_its_adapter_is_published_nothing_stops_it(fine_tune: FineTune) -> None:
    assert fine_tune.decide(PUBLISHING) == PUBLISHING
    other = PUBLISHING.model_copy(update={"name": "demo.b"})
    assert fine_tune.decide(other) == PUBLISHING
    for ask in (fine_tune.cancel, fine_tune.pause, fine_tune.resume):
        with pytest.raises(Conflict, match="is being published"):
            ask()


def test_of_a_cancel_and_a_publisher_at_once_the_first_decides(
    fine_tune: FineTune, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine_tune.cancel()
    assert fine_tune.decide(PUBLISHING) is None
    other = FineTune(fine_tune.directory.with_name("ftjob-b"))
    other.write(REQUEST, fine_tune.request)
    # The publisher decides after the cancel has looked.
    monkeypatch.setattr(other, "_check_open", lambda _: other.decide(PUBLISHING))
    with pytest.raises(Conflict, match="is being published"):
        other.cancel()
    assert other.stopping() is None


def test_one_that_was_cancelled_does_not_fail_and_one_that_fails_is_not_cancelled(
    fine_tune: FineTune, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine_tune.cancel()
    assert fine_tune.end(FAILED).status == "cancelled"
    other = FineTune(fine_tune.directory.with_name("ftjob-b"))
    other.write(REQUEST, fine_tune.request)
    monkeypatch.setattr(other, "_check_open", lambda _: other.end(FAILED))
    with pytest.raises(Conflict, match="has failed"):
        other.cancel()


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOENT])
def test_a_sick_volume_takes_nothing_from_an_end(
    fine_tune: FineTune, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    check(fine_tune)

    def fail(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "iterdir", fail)
    assert fine_tune.end(SUCCEEDED) == SUCCEEDED


def test_it_ends_once(fine_tune: FineTune) -> None:
    assert not fine_tune.over_at
    assert fine_tune.end(SUCCEEDED) == SUCCEEDED
    assert fine_tune.end(FAILED) == SUCCEEDED
    assert fine_tune.status == "succeeded"
    assert FineTune(fine_tune.directory).over_at == 9


def test_at_its_end_only_what_the_attempts_have_told_is_kept(fine_tune: FineTune) -> None:
    place = fine_tune.directory / ATTEMPTS / "000001.aa"
    for name in ("checkpoints", "epochs", "result", "tokens"):
        (place / name).mkdir(parents=True)
        (place / name / "large").write_text("weights")
    (place / "events.jsonl").write_text("")
    fine_tune.end(SUCCEEDED)
    assert [path.name for path in place.iterdir()] == ["events.jsonl"]


def test_attempts_are_in_the_order_of_their_names(fine_tune: FineTune) -> None:
    assert fine_tune.attempts() == []
    for name in ("000010.bb", "000002.cc", ".new", "000001.dd"):
        (fine_tune.directory / ATTEMPTS / name).mkdir(parents=True)
    names = [path.name for path in fine_tune.attempts()]
    assert names == ["000001.dd", "000002.cc", "000010.bb"]


def test_the_newest_look_at_the_data_counts(fine_tune: FineTune) -> None:
    check(fine_tune)
    newest = Checked(rows=4)
    fine_tune.write(f"{ATTEMPTS}/000002.bb/{CHECKED}", newest)
    (fine_tune.directory / ATTEMPTS / "000003.cc").mkdir()
    assert fine_tune.checked == newest


def test_nothing_is_written_for_one_that_is_not_there(tmp_path: Path) -> None:
    nobody = FineTune(tmp_path / "ftjob-b")
    for ask in (nobody.cancel, nobody.pause, nobody.resume):
        with pytest.raises(NoSuchObject):
            ask()
    assert not nobody.directory.exists()
