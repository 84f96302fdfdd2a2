"""Weights are read into the page cache, within bounds, by a child that ends with its parent."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.hub.caches import SHARDS, model
from support.processes.background import wait_until

from worker.engine.start.ahead import ReadAhead, reader
from worker.store import Found, Kind, Origin, Wanted, disk

PATIENCE_S = 60

PARENT = """
import sys, time
from pathlib import Path
from worker.engine.start.ahead import ReadAhead
print(ReadAhead([Path(sys.argv[1])], 1 << 20).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def locked_file(tmp_path: Path) -> Iterator[Path]:
    """A file that others wait for when they open it, as on a disk that does not answer."""
    file = tmp_path / "locked"
    file.write_bytes(bytes(5000))
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with file.open("r+b") as holder:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield file
    signal.signal(signal.SIGIO, before)


def found(place: Path, load_format: str = "auto") -> Found:
    wanted = Wanted(str(place), load_format=load_format)
    return Found(wanted, place, Origin.DIRECTORY)


def bytes_read(read_ahead: ReadAhead) -> int:
    """Wait until everything is read; return the bytes."""
    content, _ = read_ahead._child.communicate()
    return int(content.split()[0])


def cached(file: Path) -> bool:
    """Return whether the first and the last byte are in the page cache."""
    with file.open("rb") as opened:
        try:
            for offset in (0, file.stat().st_size - 1):
                os.preadv(opened.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
    return True


def is_in(mask: str, pid: int, number: signal.Signals) -> bool:
    """Return whether one of a process's masks, such as SigIgn of those ignored, has a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (bits,) = (line.split()[1] for line in lines if line.startswith(f"{mask}:"))
    return bool(int(bits, 16) >> (number - 1) & 1)


def test_files_are_read_into_the_page_cache_and_the_log_says_how_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(bytes(reader.BLOCK + 5000))
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    read_ahead = ReadAhead(files, 1 << 30)
    os.waitid(os.P_PID, read_ahead.pid, os.WEXITED | os.WNOWAIT)
    with caplog.at_level("INFO", "worker"):
        read_ahead.end()
    assert "0.03 GB of weights read ahead in " in caplog.text
    assert all(map(cached, files))


def test_no_more_is_read_than_fits_and_what_is_loaded_first_comes_first(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(bytes(5000))
    assert bytes_read(ReadAhead(files, 7000)) == 7000
    blocks = [(block[0], block[2]) for block in reader.blocks([*map(str, files)], 7000)]
    assert blocks == [(str(files[0]), 5000), (str(files[1]), 2000)]


def test_what_cant_be_read_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(5000))
    assert bytes_read(ReadAhead([tmp_path / "none", tmp_path, file], 1 << 20)) >= 5000


def test_weights_are_read_in_the_loaders_order_and_only_those_that_it_loads(tmp_path: Path) -> None:
    place = model(tmp_path / "model", SHARDS)
    for other in ("pytorch_model.bin", "original/consolidated.safetensors"):
        (place / other).parent.mkdir(exist_ok=True)
        (place / other).write_bytes(bytes(100))
    assert disk.weights(place, Wanted(str(place))) == [place / name for name in SHARDS]
    assert not disk.weights(place, Wanted(str(place), kind=Kind.TOKENIZER))


def test_weights_of_all_that_is_found_are_read_once(tmp_path: Path) -> None:
    both = [model(tmp_path / name) for name in ("model", "draft")]
    size = sum((place / "model.safetensors").stat().st_size for place in both)
    running = ReadAhead.of([*map(found, both), found(both[0])])
    assert running
    assert bytes_read(running) == size


@pytest.mark.parametrize("load_format", ["runai_streamer", "dummy", "instanttensor"])
def test_formats_without_the_page_cache_are_left_and_what_cant_be_listed_ends_no_start(
    tmp_path: Path, load_format: str
) -> None:
    there = [found(model(tmp_path / "model"), load_format), found(tmp_path / ("name" * 100))]
    assert ReadAhead.of(there) is None


def test_ctrl_c_is_for_its_parent_alone(locked_file: Path) -> None:
    read_ahead = ReadAhead([locked_file], 1 << 20)
    # It handles SIGTERM once it reads.
    wait_until(lambda: is_in("SigCgt", read_ahead.pid, signal.SIGTERM))
    assert is_in("SigIgn", read_ahead.pid, signal.SIGINT)
    read_ahead.end()


def test_it_ends_at_once_though_the_disk_does_not_answer(locked_file: Path) -> None:
    read_ahead = ReadAhead([locked_file], 1 << 20)
    child = psutil.Process(read_ahead.pid)
    read_ahead.end()
    child.wait(PATIENCE_S)
    assert not child.is_running()


def test_it_ends_when_its_parent_is_killed(locked_file: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", PARENT, str(locked_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
    child.wait(PATIENCE_S)
    assert not child.is_running()
