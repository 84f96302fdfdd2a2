"""Of many workers exactly one holds a lease, and no dead one keeps it."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import TypeAdapter

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


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def taken() -> Iterator[Callable[[Leases], Lease | None]]:
    """Take leases until the test ends."""
    with ExitStack() as stack:
        yield lambda leases: stack.enter_context(leases.taken(lambda: (5, 9)))


Take = Callable[[Leases], Lease | None]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def left_behind(directory: Path, attempt: int = 1, content: bytes | None = None) -> None:
    """Create the lease that a dead owner has left."""
    directory.mkdir(exist_ok=True)
    claim = TypeAdapter(Claim).dump_json(Claim("dead", "host", 1, attempt, 7, 5, 9))
    path = directory / f"lease-{attempt}"
    path.write_bytes(claim if content is None else content)


def look_in_vain(leases: Leases, times: int = PATIENCE + 1) -> None:
    for _ in range(times):
        leases.look()


def changed(file: Path, before: bytes) -> bytes:
    """Wait until a file has another content; return it."""
    deadline = time.monotonic() + 60
    while (content := file.read_bytes()) == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return content


def taken_at_once(every: list[Leases]) -> list[int | None]:
    """Let all try at the same moment; return the attempt of each, None where it got no lease."""
    begin, end = (threading.Barrier(len(every), timeout=60) for _ in range(2))

    def take(leases: Leases) -> int | None:
        begin.wait()
        with leases.taken(lambda: (0, 0)) as got:
            end.wait()
            return got.attempt if got else None

    with ThreadPoolExecutor(len(every)) as pool:
        return list(pool.map(take, every))


def test_exactly_one_of_many_gets_it(directory: Path) -> None:
    for _ in range(20):
        attempts = taken_at_once([Leases(directory) for _ in range(MANY)])
        assert [attempt for attempt in attempts if attempt] == [1]


def test_an_owner_says_who_it_is_and_how_far_it_has_come(directory: Path, taken: Take) -> None:
    assert taken(Leases(directory))
    claim = Leases(directory).look()
    assert claim
    assert (claim.attempt, claim.done, claim.total) == (1, 5, 9)
    assert claim.host
    assert claim.pid
    assert claim.owner


def test_an_owner_that_says_less_than_before_is_understood(directory: Path) -> None:
    came = iter([(10**15, 10**15)])
    with Leases(directory).taken(lambda: next(came, (0, 0))):
        other, deadline = Leases(directory), time.monotonic() + 60
        while (claim := other.look()) is None or claim.done:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert claim.total == 0


def test_an_owner_that_lives_keeps_it(directory: Path, taken: Take) -> None:
    mine, other = taken(Leases(directory)), Leases(directory)
    assert mine
    before = b""
    for _ in range(2 * PATIENCE):
        before = changed(directory / "lease-1", before)
        other.look()
        assert taken(other) is None
    assert not mine.lost.is_set()


@pytest.mark.usefixtures("_still")
def test_who_does_not_get_it_has_the_owner_left_alone(directory: Path, taken: Take) -> None:
    assert taken(Leases(directory))
    with Leases(directory).taken(lambda: (0, 0)) as got:
        assert got is None
    assert files(directory) == ["lease-1"]


def test_a_dead_owner_is_waited_for_as_long_as_is_said(directory: Path, taken: Take) -> None:
    left_behind(directory)
    waiting = Leases(directory)
    look_in_vain(waiting, PATIENCE)
    assert taken(waiting) is None
    waiting.look()
    got = taken(waiting)
    assert got
    assert got.attempt == 2
    assert files(directory) == ["lease-2"]


def test_of_several_who_wait_one_takes_over(directory: Path) -> None:
    left_behind(directory, attempt=9)
    waiting = [Leases(directory) for _ in range(MANY)]
    for leases in waiting:
        look_in_vain(leases)
    attempts = taken_at_once(waiting)
    assert [attempt for attempt in attempts if attempt] == [10]


def test_a_worker_that_has_taken_over_is_waited_for_anew(directory: Path, taken: Take) -> None:
    left_behind(directory)
    first, second = Leases(directory), Leases(directory)
    look_in_vain(first)
    look_in_vain(second)
    assert taken(first)
    second.look()
    assert taken(second) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"owner": "x"', b"\xff\0", b"[]"])
def test_what_an_owner_was_writing_when_it_died_is_taken_over(
    directory: Path, taken: Take, content: bytes
) -> None:
    left_behind(directory, content=content)
    waiting = Leases(directory)
    assert waiting.look() is None
    look_in_vain(waiting, PATIENCE)
    got = taken(waiting)
    assert got
    assert got.attempt == 2


def test_a_change_that_can_not_be_read_is_a_sign_of_life(directory: Path, taken: Take) -> None:
    waiting = Leases(directory)
    for beat in range(2 * PATIENCE):
        left_behind(directory, content=b"{" * beat)
        waiting.look()
    assert taken(waiting) is None


def test_other_files_there_are_no_leases(directory: Path, taken: Take) -> None:
    directory.mkdir()
    for name in ("lease-x", "lease-", "lease-1.tmp", "manifests"):
        (directory / name).touch()
    got = taken(Leases(directory))
    assert got
    assert got.attempt == 1


@pytest.mark.usefixtures("_still")
def test_release_lets_the_next_one_in_at_once(directory: Path, taken: Take) -> None:
    waiting = Leases(directory)
    with Leases(directory).taken(lambda: (0, 0)):
        waiting.look()
        assert taken(waiting) is None
    assert waiting.look() is None
    assert taken(waiting)


def test_a_failure_releases_it(directory: Path) -> None:
    with pytest.raises(ValueError, match="x"), Leases(directory).taken(lambda: (0, 0)):
        raise ValueError("x")
    assert files(directory) == []


@pytest.mark.usefixtures("_still")
def test_a_process_that_ends_hands_all_back(tmp_path: Path, taken: Take) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    assert all(taken(Leases(directory)) for directory in directories)
    lease.release_all()
    assert [files(directory) for directory in directories] == [[], []]


# Owners that were too slow:


def go_on(owner: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the heartbeat of an owner that had none."""
    monkeypatch.setattr(lease, "BEAT_S", 0.02)
    threading.Thread(target=owner.keep_alive, daemon=True).start()


def overtaken(directory: Path, taken: Take) -> Lease:
    other = Leases(directory)
    look_in_vain(other)
    got = taken(other)
    assert got
    return got


@pytest.mark.usefixtures("_still")
def test_an_owner_that_was_too_slow_notices(
    directory: Path, taken: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = taken(Leases(directory))
    assert slow
    fast = overtaken(directory, taken)
    for owner in (slow, fast):
        go_on(owner, monkeypatch)
    assert slow.lost.wait(60)
    assert not fast.lost.wait(0.2)


@pytest.mark.usefixtures("_still")
def test_what_a_slow_owner_releases_is_not_its_successors(directory: Path, taken: Take) -> None:
    slow = taken(Leases(directory))
    assert slow
    overtaken(directory, taken)
    slow.release()
    assert files(directory) == ["lease-2"]


@pytest.mark.usefixtures("_still")
def test_an_owner_after_two_others_notices_though_numbers_have_begun_again(
    directory: Path, taken: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = taken(Leases(directory))
    assert slow
    overtaken(directory, taken).release()
    third = taken(Leases(directory))
    assert third
    assert third.attempt == slow.attempt == 1
    for owner in (slow, third):
        go_on(owner, monkeypatch)
    assert slow.lost.wait(60)
    slow.release()
    assert not third.lost.wait(0.2)
    assert files(directory) == ["lease-1"]


def test_a_beat_that_can_not_be_written_is_made_up_for(directory: Path, taken: Take) -> None:
    mine = taken(Leases(directory))
    assert mine
    path = directory / "lease-1"
    aside, loop = directory / "aside", directory / "loop"
    aside.hardlink_to(path)
    # A loop of links has the same number, but can't be written to. At no moment is there no file.
    loop.symlink_to(path)
    loop.replace(path)
    assert not mine.lost.wait(0.2)
    aside.replace(path)
    changed(path, path.read_bytes())
    assert not mine.lost.is_set()


# Directories that can't be written to:


@pytest.mark.parametrize("place", ["file", "file/below", "loop"])
def test_what_can_not_be_written_to_is_reported(tmp_path: Path, taken: Take, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=place):
        taken(Leases(tmp_path / place))


def test_a_directory_that_another_one_tidies_away_is_made_again(
    directory: Path, taken: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = Leases(directory)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", lambda *_, **__: None)
        assert taken(leases) is None
    assert taken(leases)
