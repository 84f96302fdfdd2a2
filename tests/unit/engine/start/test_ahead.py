"""Reading weights ahead into the page cache, in a child process that exits with its parent."""

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.hub.caches import make_model
from support.processes.background import wait_until

from worker.engine.start.ahead import ReadAhead, reader
from worker.store import Artifact, ArtifactLocation, Origin

PATIENCE_S = 60


@pytest.fixture
def locked_file(tmp_path: Path) -> Iterator[Path]:
    """A file that other processes block on when they open it, as on a disk that doesn't respond."""
    file = tmp_path / "locked"
    file.write_bytes(bytes(5000))
    handler = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with file.open("r+b") as holder:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield file
    signal.signal(signal.SIGIO, handler)


def location(place: Path, load_format: str = "auto") -> ArtifactLocation:
    artifact = Artifact(str(place), load_format=load_format)
    return ArtifactLocation(artifact, place, Origin.DIRECTORY)


def bytes_read(read_ahead: ReadAhead) -> int:
    """Wait until everything has been read; return the number of bytes."""
    content, _ = read_ahead._child.communicate()
    return int(content.split()[0])


def is_cached(file: Path) -> bool:
    """Return whether the first and the last byte are in the page cache."""
    with file.open("rb") as opened:
        try:
            for offset in (0, file.stat().st_size - 1):
                os.preadv(opened.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
    return True


def has_signal(mask: str, pid: int, number: signal.Signals) -> bool:
    """Return whether a mask of a process, such as SigIgn of ignored signals, contains a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (bits,) = (line.split()[1] for line in lines if line.startswith(f"{mask}:"))
    return bool(int(bits, 16) >> (number - 1) & 1)


def test_files_are_read_into_the_page_cache_and_their_size_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(bytes(reader.BLOCK_BYTES + 5000))
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    read_ahead = ReadAhead(files, 1 << 30)
    os.waitid(os.P_PID, read_ahead.pid, os.WEXITED | os.WNOWAIT)
    with caplog.at_level("INFO", "worker"):
        read_ahead.stop()
    assert "read ahead: 0.03 GB of weights in " in caplog.text
    assert all(map(is_cached, files))


def test_files_are_read_in_order_up_to_the_limit(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(bytes(5000))
    assert bytes_read(ReadAhead(files, 7000)) == 7000
    blocks = [(block[0], block[2]) for block in reader.iter_blocks([*map(str, files)], 7000)]
    assert blocks == [(str(files[0]), 5000), (str(files[1]), 2000)]


def test_unreadable_files_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(5000))
    assert bytes_read(ReadAhead([tmp_path / "none", tmp_path, file], 1 << 20)) >= 5000


def test_the_weights_of_every_model_are_read_once(tmp_path: Path) -> None:
    both = [make_model(tmp_path / name) for name in ("model", "draft")]
    size = sum((place / "model.safetensors").stat().st_size for place in both)
    running = ReadAhead.start([*map(location, both), location(both[0])])
    assert running
    assert bytes_read(running) == size


@pytest.mark.parametrize("load_format", ["runai_streamer", "dummy", "instanttensor"])
def test_nothing_is_read_for_loaders_without_the_page_cache_or_from_unreadable_directories(
    tmp_path: Path, load_format: str
) -> None:
    locations = [
        location(make_model(tmp_path / "model"), load_format),
        location(tmp_path / ("name" * 100)),
    ]
    assert ReadAhead.start(locations) is None


def test_the_child_ignores_ctrl_c(locked_file: Path) -> None:
    read_ahead = ReadAhead([locked_file], 1 << 20)
    # The child handles SIGTERM once it reads.
    wait_until(lambda: has_signal("SigCgt", read_ahead.pid, signal.SIGTERM))
    assert has_signal("SigIgn", read_ahead.pid, signal.SIGINT)
    read_ahead.stop()


def test_the_child_stops_immediately_although_the_disk_does_not_respond(locked_file: Path) -> None:
    read_ahead = ReadAhead([locked_file], 1 << 20)
    child = psutil.Process(read_ahead.pid)
    read_ahead.stop()
    child.wait(PATIENCE_S)
    assert not child.is_running()
