"""Leases: exactly one worker owns a lease, and a dead owner loses it."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from support.processes.background import HUNG_S, wait_until

from worker.volume import lease
from worker.volume.lease import (
    CONFIRMING_POLLS,
    MAX_UNCHANGED_POLLS,
    SILENT_S,
    Claim,
    Lease,
    LeaseDirectory,
)

MANY = 8


@pytest.fixture(autouse=True)
def _send_heartbeats_often(monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread of an earlier test may still wait for that test's time.
    monkeypatch.setattr(lease, "heartbeats", lease.Heartbeats())
    monkeypatch.setattr(lease, "HEARTBEAT_S", 0.02)


@pytest.fixture
def _suppress_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suppress the heartbeats of owners."""
    monkeypatch.setattr(lease, "HEARTBEAT_S", 3600.0)


without_heartbeats = pytest.mark.usefixtures("_suppress_heartbeats")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


Acquire = Callable[[LeaseDirectory], Lease]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def acquire(stack: ExitStack) -> Acquire:
    """Return a function that acquires a free lease until the test ends."""

    def acquire(leases: LeaseDirectory) -> Lease:
        acquired = stack.enter_context(leases.acquire(lambda: (5, 9)))
        assert acquired
        return acquired

    return acquire


def is_free(leases: LeaseDirectory) -> bool:
    with leases.acquire(lambda: (0, 0)) as acquired:
        return acquired is not None


def file_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def leave_lease(directory: Path, attempt: int = 1, content: bytes | None = None) -> None:
    """Create the lease of a dead owner."""
    directory.mkdir(exist_ok=True)
    claim = TypeAdapter(Claim).dump_json(Claim("dead", "host", 1, attempt, 7, 5, 9))
    path = directory / f"lease-{attempt}"
    path.write_bytes(claim if content is None else content)


def poll_repeatedly(directory: Path, times: int = MAX_UNCHANGED_POLLS + 1) -> LeaseDirectory:
    """Return leases after some polls; the first poll has no earlier one to compare with."""
    leases = LeaseDirectory(directory)
    for _ in range(times):
        leases.poll_claim()
    return leases


def wait_for_change(file: Path, before: bytes) -> bytes:
    """Wait until the content of a file changes; return the new content."""
    wait_until(lambda: file.read_bytes() != before)
    return file.read_bytes()


def acquire_concurrently(candidates: list[LeaseDirectory]) -> list[int]:
    """Let all workers try at the same moment; return the attempts of the acquired leases."""
    start, end = (threading.Barrier(len(candidates), timeout=HUNG_S) for _ in range(2))

    def acquire(leases: LeaseDirectory) -> int | None:
        start.wait()
        with leases.acquire(lambda: (0, 0)) as acquired:
            end.wait()
            return acquired.number if acquired else None

    with ThreadPoolExecutor(len(candidates)) as pool:
        return [attempt for attempt in pool.map(acquire, candidates) if attempt]


def test_exactly_one_of_many_workers_acquires_a_lease(directory: Path) -> None:
    for _ in range(20):
        assert acquire_concurrently([LeaseDirectory(directory) for _ in range(MANY)]) == [1]


def test_the_claim_of_an_owner_has_its_identity_and_its_progress(
    directory: Path, acquire: Acquire
) -> None:
    acquire(LeaseDirectory(directory))
    claim = LeaseDirectory(directory).poll_claim()
    assert claim
    assert (claim.attempt, claim.done, claim.total) == (1, 5, 9)
    assert (claim.pid, bool(claim.host), bool(claim.owner)) == (os.getpid(), True, True)


def test_a_claim_that_becomes_shorter_is_read_correctly(directory: Path) -> None:
    progress = iter([(10**15, 10**15)])
    with LeaseDirectory(directory).acquire(lambda: next(progress, (0, 0))):

        def is_new() -> bool:
            claim = LeaseDirectory(directory).poll_claim()
            return claim is not None and (claim.done, claim.total) == (0, 0)

        wait_until(is_new)


def test_a_live_owner_keeps_its_lease(directory: Path, acquire: Acquire) -> None:
    owned, other = acquire(LeaseDirectory(directory)), LeaseDirectory(directory)
    before = b""
    for _ in range(2 * MAX_UNCHANGED_POLLS):
        before = wait_for_change(directory / "lease-1", before)
        other.poll_claim()
        assert not is_free(other)
    assert not owned.lost.is_set()
    assert file_names(directory) == ["lease-1"]


def test_the_lease_of_a_dead_owner_is_free_after_enough_unchanged_polls(
    directory: Path, acquire: Acquire
) -> None:
    leave_lease(directory)
    waiting = poll_repeatedly(directory, MAX_UNCHANGED_POLLS)
    assert not is_free(waiting)
    waiting.poll_claim()
    assert acquire(waiting).number == 2
    assert file_names(directory) == ["lease-2"]


@without_heartbeats
@pytest.mark.parametrize(
    ("polls", "age_s", "is_dead"),
    [
        (CONFIRMING_POLLS, SILENT_S + 1, True),
        (CONFIRMING_POLLS - 1, SILENT_S + 1, False),
        (MAX_UNCHANGED_POLLS - 1, SILENT_S - 5, False),
        # The clock of the owner's machine, or of the volume, is wrong.
        (MAX_UNCHANGED_POLLS, -3600, True),
    ],
)
def test_few_polls_suffice_if_the_last_heartbeat_is_old(
    directory: Path, polls: int, age_s: float, is_dead: bool
) -> None:
    leave_lease(directory)
    os.utime(directory / "lease-1", (then := time.time() - age_s, then))
    assert is_free(poll_repeatedly(directory, polls + 1)) is is_dead


@without_heartbeats
def test_a_living_owner_on_a_machine_with_a_wrong_clock_keeps_its_lease(
    directory: Path, acquire: Acquire
) -> None:
    owned, others = acquire(LeaseDirectory(directory)), LeaseDirectory(directory)
    for number in range(3 * MAX_UNCHANGED_POLLS):
        # A heartbeat every two seconds, and a poll every second.
        if number % 2 == 0:
            owned.renew()
        os.utime(directory / "lease-1", (then := time.time() - 3600, then))
        others.poll_claim()
        assert not is_free(others)
    assert not owned.lost.is_set()


def test_one_of_several_waiting_workers_takes_over(directory: Path) -> None:
    leave_lease(directory, attempt=9)
    assert acquire_concurrently([poll_repeatedly(directory) for _ in range(MANY)]) == [10]


def test_a_new_owner_starts_a_new_waiting_period(directory: Path, acquire: Acquire) -> None:
    leave_lease(directory)
    first, second = poll_repeatedly(directory), poll_repeatedly(directory)
    acquire(first)
    second.poll_claim()
    assert not is_free(second)


@pytest.mark.parametrize("content", [b"", b"{", b'{"owner": "x"', b"\xff\0", b"[]"])
def test_an_incomplete_lease_of_a_dead_owner_is_taken_over(
    directory: Path, acquire: Acquire, content: bytes
) -> None:
    leave_lease(directory, content=content)
    assert LeaseDirectory(directory).poll_claim() is None
    assert acquire(poll_repeatedly(directory)).number == 2


def test_an_unreadable_change_counts_as_a_heartbeat(directory: Path) -> None:
    waiting = LeaseDirectory(directory)
    for beat in range(2 * MAX_UNCHANGED_POLLS):
        leave_lease(directory, content=b"{" * beat)
        waiting.poll_claim()
    assert not is_free(waiting)


def test_other_files_in_the_directory_are_not_leases(directory: Path, acquire: Acquire) -> None:
    directory.mkdir()
    for name in ("lease-x", "lease-", "lease-1.tmp", "manifests"):
        (directory / name).touch()
    assert acquire(LeaseDirectory(directory)).number == 1


@without_heartbeats
def test_a_released_lease_is_free_immediately(directory: Path) -> None:
    waiting = LeaseDirectory(directory)
    with LeaseDirectory(directory).acquire(lambda: (0, 0)):
        waiting.poll_claim()
        assert not is_free(waiting)
    assert file_names(directory) == []
    assert waiting.poll_claim() is None
    assert is_free(waiting)


def test_an_exception_releases_the_lease(directory: Path) -> None:
    with pytest.raises(ValueError, match="x"), LeaseDirectory(directory).acquire(lambda: (0, 0)):
        raise ValueError("x")
    assert file_names(directory) == []


@without_heartbeats
def test_a_process_that_exits_releases_all_its_leases(tmp_path: Path, acquire: Acquire) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        acquire(LeaseDirectory(directory))
    lease.release_all_leases()
    assert [file_names(directory) for directory in directories] == [[], []]


def expect_heartbeats(directory: Path, name: str) -> None:
    """Wait for further heartbeats, which an owner without its lease would not send."""
    content = (directory / name).read_bytes()
    for _ in range(3):
        content = wait_for_change(directory / name, content)


@without_heartbeats
@pytest.mark.parametrize("attempt", [2, 1])
def test_a_slow_owner_notices_its_loss_and_leaves_its_successor_alone(
    directory: Path, acquire: Acquire, attempt: int
) -> None:
    slow, successor = acquire(LeaseDirectory(directory)), acquire(poll_repeatedly(directory))
    if attempt == slow.number:
        # After a release, attempts are numbered from 1 again.
        successor.release()
        successor = acquire(LeaseDirectory(directory))
    assert successor.number == attempt
    slow.renew()
    assert slow.lost.is_set()
    slow.release()
    before = (directory / f"lease-{attempt}").read_bytes()
    successor.renew()
    assert (directory / f"lease-{attempt}").read_bytes() != before
    assert (successor.lost.is_set(), file_names(directory)) == (False, [f"lease-{attempt}"])


def test_one_thread_renews_all_leases_and_ends_with_the_last_one(tmp_path: Path) -> None:
    def renewing_threads() -> int:
        return sum(thread.name == "leases" for thread in threading.enumerate())

    with ExitStack() as stack:
        for number in range(20):
            assert stack.enter_context(LeaseDirectory(tmp_path / str(number)).acquire())
        for number in range(20):
            expect_heartbeats(tmp_path / str(number), "lease-1")
        wait_until(lambda: renewing_threads() == 1)
    wait_until(lambda: not renewing_threads())


@pytest.mark.parametrize("step", ["_is_owned", "_write_claim"])
def test_an_owner_survives_failed_heartbeats(
    directory: Path, acquire: Acquire, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tries = threading.Semaphore(0)

    def fail(_: Lease) -> None:
        tries.release()
        raise OSError(errno.ESTALE, "a sick disk")

    owned = acquire(LeaseDirectory(directory))
    with monkeypatch.context() as patched:
        patched.setattr(Lease, step, fail)
        for _ in range(3):
            assert tries.acquire(timeout=HUNG_S)
    expect_heartbeats(directory, "lease-1")
    assert not owned.lost.is_set()


@pytest.mark.parametrize("place", ["file", "file/below", "loop"])
def test_a_directory_that_can_not_be_written_to_is_an_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=place):
        is_free(LeaseDirectory(tmp_path / place))


def test_a_lost_directory_is_created_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = LeaseDirectory(directory)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", lambda *_, **__: None)
        assert not is_free(leases)
    assert is_free(leases)
