"""Of many workers exactly one holds a lease, and no dead one keeps it."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from support.processes.background import HUNG_S, wait_until

from worker.volume import lease
from worker.volume.lease import PATIENCE, Claim, Lease, Leases

MANY = 8


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.02)


@pytest.fixture
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let owners write no heartbeat."""
    monkeypatch.setattr(lease, "BEAT_S", 3600.0)


still = pytest.mark.usefixtures("_still")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


Take = Callable[[Leases], Lease]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def take(stack: ExitStack) -> Take:
    """Take leases that are free, until the test ends."""

    def take(leases: Leases) -> Lease:
        got = stack.enter_context(leases.taken(lambda: (5, 9)))
        assert got
        return got

    return take


def is_free(leases: Leases) -> bool:
    with leases.taken(lambda: (0, 0)) as got:
        return got is not None


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def left_behind(directory: Path, attempt: int = 1, content: bytes | None = None) -> None:
    """Create the lease that a dead owner has left."""
    directory.mkdir(exist_ok=True)
    claim = TypeAdapter(Claim).dump_json(Claim("dead", "host", 1, attempt, 7, 5, 9))
    path = directory / f"lease-{attempt}"
    path.write_bytes(claim if content is None else content)


def looked(directory: Path, times: int = PATIENCE + 1) -> Leases:
    """Return what one has seen that has looked so often; the first look has no other before it."""
    leases = Leases(directory)
    for _ in range(times):
        leases.look()
    return leases


def changed(file: Path, before: bytes) -> bytes:
    """Wait until a file has another content; return it."""
    wait_until(lambda: file.read_bytes() != before)
    return file.read_bytes()


def taken_at_once(every: list[Leases]) -> list[int]:
    """Let all try at the same moment; return the attempts of those that got the lease."""
    begin, end = (threading.Barrier(len(every), timeout=HUNG_S) for _ in range(2))

    def take(leases: Leases) -> int | None:
        begin.wait()
        with leases.taken(lambda: (0, 0)) as got:
            end.wait()
            return got.attempt if got else None

    with ThreadPoolExecutor(len(every)) as pool:
        return [attempt for attempt in pool.map(take, every) if attempt]


def test_exactly_one_of_many_gets_it(directory: Path) -> None:
    for _ in range(20):
        assert taken_at_once([Leases(directory) for _ in range(MANY)]) == [1]


def test_an_owner_says_who_it_is_and_how_far_it_has_come(directory: Path, take: Take) -> None:
    take(Leases(directory))
    claim = Leases(directory).look()
    assert claim
    assert (claim.attempt, claim.done, claim.total) == (1, 5, 9)
    assert (claim.pid, bool(claim.host), bool(claim.owner)) == (os.getpid(), True, True)


def test_an_owner_that_says_less_than_before_is_understood(directory: Path) -> None:
    came = iter([(10**15, 10**15)])
    with Leases(directory).taken(lambda: next(came, (0, 0))):

        def is_new() -> bool:
            claim = Leases(directory).look()
            return claim is not None and (claim.done, claim.total) == (0, 0)

        wait_until(is_new)


def test_an_owner_that_lives_keeps_it(directory: Path, take: Take) -> None:
    mine, other = take(Leases(directory)), Leases(directory)
    before = b""
    for _ in range(2 * PATIENCE):
        before = changed(directory / "lease-1", before)
        other.look()
        assert not is_free(other)
    assert not mine.lost.is_set()
    assert files(directory) == ["lease-1"]


def test_a_dead_owner_is_waited_for_as_long_as_is_said(directory: Path, take: Take) -> None:
    left_behind(directory)
    waiting = looked(directory, PATIENCE)
    assert not is_free(waiting)
    waiting.look()
    assert take(waiting).attempt == 2
    assert files(directory) == ["lease-2"]


def test_of_several_who_wait_one_takes_over(directory: Path) -> None:
    left_behind(directory, attempt=9)
    assert taken_at_once([looked(directory) for _ in range(MANY)]) == [10]


def test_a_worker_that_has_taken_over_is_waited_for_anew(directory: Path, take: Take) -> None:
    left_behind(directory)
    first, second = looked(directory), looked(directory)
    take(first)
    second.look()
    assert not is_free(second)


@pytest.mark.parametrize("content", [b"", b"{", b'{"owner": "x"', b"\xff\0", b"[]"])
def test_what_a_dying_owner_wrote_is_free(directory: Path, take: Take, content: bytes) -> None:
    left_behind(directory, content=content)
    assert Leases(directory).look() is None
    assert take(looked(directory)).attempt == 2


def test_a_change_that_can_not_be_read_is_a_sign_of_life(directory: Path) -> None:
    waiting = Leases(directory)
    for beat in range(2 * PATIENCE):
        left_behind(directory, content=b"{" * beat)
        waiting.look()
    assert not is_free(waiting)


def test_other_files_there_are_no_leases(directory: Path, take: Take) -> None:
    directory.mkdir()
    for name in ("lease-x", "lease-", "lease-1.tmp", "manifests"):
        (directory / name).touch()
    assert take(Leases(directory)).attempt == 1


@still
def test_release_lets_the_next_one_in_at_once(directory: Path) -> None:
    waiting = Leases(directory)
    with Leases(directory).taken(lambda: (0, 0)):
        waiting.look()
        assert not is_free(waiting)
    assert files(directory) == []
    assert waiting.look() is None
    assert is_free(waiting)


def test_a_failure_releases_it(directory: Path) -> None:
    with pytest.raises(ValueError, match="x"), Leases(directory).taken(lambda: (0, 0)):
        raise ValueError("x")
    assert files(directory) == []


@still
def test_a_process_that_ends_hands_all_back(tmp_path: Path, take: Take) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        take(Leases(directory))
    lease.release_all()
    assert [files(directory) for directory in directories] == [[], []]


def beats_on(directory: Path, name: str) -> None:
    """Wait until an owner has beaten a few times more: one that has lost its lease would not."""
    content = (directory / name).read_bytes()
    for _ in range(3):
        content = changed(directory / name, content)


@still
@pytest.mark.parametrize("attempt", [2, 1])
def test_an_owner_that_was_too_slow_notices_and_leaves_its_successor_alone(
    directory: Path, take: Take, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    slow, successor = take(Leases(directory)), take(looked(directory))
    if attempt == slow.attempt:
        # Numbers begin again.
        successor.release()
        successor = take(Leases(directory))
    assert successor.attempt == attempt
    monkeypatch.setattr(lease, "BEAT_S", 0.02)
    for owner in (slow, successor):
        threading.Thread(target=owner.keep_alive, daemon=True).start()
    assert slow.lost.wait(HUNG_S)
    slow.release()
    beats_on(directory, f"lease-{attempt}")
    assert (successor.lost.is_set(), files(directory)) == (False, [f"lease-{attempt}"])


@pytest.mark.parametrize("step", ["_is_mine", "_write"])
def test_a_beat_that_fails_is_made_up_for(
    directory: Path, take: Take, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tries = threading.Semaphore(0)

    def fail(_: Lease) -> None:
        tries.release()
        raise OSError(errno.ESTALE, "a sick disk")

    mine = take(Leases(directory))
    with monkeypatch.context() as patched:
        patched.setattr(Lease, step, fail)
        for _ in range(3):
            assert tries.acquire(timeout=HUNG_S)
    beats_on(directory, "lease-1")
    assert not mine.lost.is_set()


@pytest.mark.parametrize("place", ["file", "file/below", "loop"])
def test_what_can_not_be_written_to_is_reported(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=place):
        is_free(Leases(tmp_path / place))


def test_a_lost_directory_is_made_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases(directory)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", lambda *_, **__: None)
        assert not is_free(leases)
    assert is_free(leases)
