"""Archives of compiled code: published once on the volume, unpacked by later workers."""

import gzip
import io
import logging
import os
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.compile_caches import (
    GRAPH,
    INDUCTOR,
    KERNEL,
    KEY,
    MODEL,
    OF_THE_MACHINE,
    Started,
    archive,
    shared,
)

from worker.compile_cache import STARTUP_PLAN, publishing


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    # Set first, so that what a start exports is taken back, too.
    monkeypatch.setenv(STARTUP_PLAN, "")
    caplog.set_level(logging.INFO, logger="worker")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    volume = tmp_path / "volume"
    volume.mkdir()
    return volume


def test_what_one_worker_compiled_the_next_one_finds(volume: Path, tmp_path: Path) -> None:
    first = Started(volume, tmp_path / "1").compile(GRAPH, INDUCTOR, KERNEL, MODEL).healthy()
    second = Started(volume, tmp_path / "2")
    assert (first.knew, first.found) == (False, False)
    assert (second.knew, second.found) == (True, True)
    assert all(second.holds(name) for name in (GRAPH, INDUCTOR, KERNEL, MODEL))


def test_what_was_compiled_keeps_its_age(volume: Path, tmp_path: Path) -> None:
    first = Started(volume, tmp_path / "1").compile(GRAPH)
    os.utime(first.local / GRAPH, (1000, 1000))
    first.healthy()
    second = Started(volume, tmp_path / "2")
    assert (second.local / GRAPH).stat().st_mtime == 1000


def test_another_key_finds_nothing(volume: Path, tmp_path: Path) -> None:
    Started(volume, tmp_path / "1").compile(GRAPH).healthy()
    assert not Started(volume, tmp_path / "2", "vllm-2_cpu_0123").found


def test_what_is_the_machines_is_not_published(volume: Path, tmp_path: Path) -> None:
    Started(volume, tmp_path / "1").compile(GRAPH, OF_THE_MACHINE).healthy()
    assert not Started(volume, tmp_path / "2").holds(OF_THE_MACHINE)


def test_nothing_is_written_where_nothing_was_compiled(
    volume: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "1" / "inductor").mkdir(parents=True)
    Started(volume, tmp_path / "1").healthy()
    assert list(volume.iterdir()) == []
    assert caplog.messages == []


def test_what_is_published_is_not_published_again(volume: Path, tmp_path: Path) -> None:
    late = Started(volume, tmp_path / "1")
    Started(volume, tmp_path / "2").compile(GRAPH).healthy()
    before = archive(volume).read_bytes()
    late.compile(GRAPH, content="again").healthy()
    assert archive(volume).read_bytes() == before


def test_of_many_workers_one_publishes(
    volume: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [Started(volume, tmp_path / str(each)) for each in range(8)]
    for number, worker in enumerate(workers):
        worker.compile(GRAPH, content=f"by {number} " * 100_000)
    with ThreadPoolExecutor(len(workers)) as threads:
        list(threads.map(Started.healthy, workers))
    ends = [message for message in caplog.messages if message.startswith(f"compile cache: {KEY}: ")]
    assert len(ends) == len(workers)
    assert len([end for end in ends if ": published" in end]) == 1
    assert shared(volume) == [archive(volume).name]
    assert Started(volume, tmp_path / "next").found


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_an_archive_that_was_cut_off_is_no_more_trusted_and_made_again(
    volume: Path, tmp_path: Path, kept: float, caplog: pytest.LogCaptureFixture
) -> None:
    first = Started(volume, tmp_path / "1").compile(GRAPH, KERNEL)
    (first.local / KERNEL).write_bytes(os.urandom(100_000))
    first.healthy()
    whole = archive(volume).read_bytes()
    archive(volume).write_bytes(whole[: int(len(whole) * kept)])
    second = Started(volume, tmp_path / "2")
    assert not second.found
    assert "can't be unpacked" in caplog.text
    assert not second.holds(GRAPH)
    assert not second.holds(KERNEL)
    second.compile(GRAPH).healthy()
    assert Started(volume, tmp_path / "3").holds(GRAPH)


def test_a_changed_byte_is_noticed(volume: Path, tmp_path: Path) -> None:
    first = Started(volume, tmp_path / "1").compile(GRAPH)
    (first.local / GRAPH).write_bytes(os.urandom(100_000))
    first.healthy()
    damaged = bytearray(archive(volume).read_bytes())
    damaged[50_000] ^= 1
    archive(volume).write_bytes(damaged)
    second = Started(volume, tmp_path / "2")
    assert not second.found
    assert not second.holds(GRAPH)


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="of Python since 3.11.4")
def test_no_archive_leads_out_of_the_local_directory(volume: Path, tmp_path: Path) -> None:
    archive(volume).parent.mkdir()
    with tarfile.open(archive(volume), "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    (tmp_path / "1").mkdir()
    assert not Started(volume, tmp_path / "1").found
    assert not (tmp_path / "outside").exists()


def test_what_can_not_be_read_stops_no_start_and_stays(
    volume: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A directory in its place: reading fails, though not for what is in it.
    archive(volume).mkdir(parents=True)
    worker = Started(volume, tmp_path / "1").compile(GRAPH)
    assert not worker.found
    assert "can't be unpacked" in caplog.text
    worker.healthy()
    assert archive(volume).is_dir()
    assert f"{KEY}: not published" not in caplog.text


def test_a_volume_that_has_gone_is_reported_in_one_line(
    volume: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Started(volume, tmp_path / "1").compile(GRAPH)
    volume.rmdir()
    worker.healthy()
    assert [message for message in caplog.messages if "can't be published" in message] == [
        f"compile cache: {KEY}: can't be published: No such file or directory"
    ]


def test_a_disk_that_is_full_keeps_nothing_half_written(volume: Path, tmp_path: Path) -> None:
    folder = tmp_path / "1"
    big = folder / GRAPH
    big.parent.mkdir(parents=True)
    big.write_bytes(os.urandom(2**20))
    # The kernel refuses to write more to one file, as it does on a disk that is full.
    limited = f"ulimit -f 512; exec {sys.executable} {publishing.__file__} $0 $@"
    command = ["bash", "-c", limited, str(os.getpid()), str(archive(volume))]
    command += [str(folder), "vllm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "can't be published: File too large")
    assert shared(volume) == []


def test_what_a_dead_worker_left_is_removed_when_it_is_old(volume: Path, tmp_path: Path) -> None:
    Started(volume, tmp_path / "1").compile(GRAPH)
    partial = archive(volume).with_name(archive(volume).name + ".partial")
    partial.parent.mkdir()
    partial.touch()
    Started(volume, tmp_path / "2").compile(GRAPH).healthy()
    assert shared(volume) == [partial.name]
    long_ago = time.time() - publishing.ABANDONED_S - 10
    os.utime(partial, (long_ago, long_ago))
    Started(volume, tmp_path / "3").compile(GRAPH).healthy()
    assert shared(volume) == [archive(volume).name]


def test_a_worker_that_was_frozen_while_it_packed_publishes_nothing(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Started(volume, tmp_path / "1").compile(GRAPH).local
    monkeypatch.setattr(publishing, "LONGEST_S", -1.0)
    with pytest.raises(publishing.Stopped, match="begun it anew"):
        publishing.publish(os.getppid(), archive(volume), folder, ["vllm"])
    assert shared(volume) == []


def test_an_archive_that_is_not_used_any_more_makes_room(volume: Path, tmp_path: Path) -> None:
    for key in ("used", "unused"):
        Started(volume, tmp_path / key, key).compile(GRAPH).healthy()
    for key in ("used", "unused"):
        long_ago = time.time() - publishing.UNUSED_S - 10
        os.utime(archive(volume, key), (long_ago, long_ago))
    assert Started(volume, tmp_path / "again", "used").found
    Started(volume, tmp_path / "new", "new").compile(GRAPH).healthy()
    assert shared(volume) == [archive(volume, "new").name, archive(volume, "used").name]


def test_a_worker_that_ends_leaves_its_publisher_no_work(volume: Path, tmp_path: Path) -> None:
    folder = Started(volume, tmp_path / "1").compile(GRAPH).local
    nobody = "0"
    words = [nobody, str(archive(volume)), str(folder), "vllm"]
    command = [sys.executable, publishing.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "not published: the worker has ended"
    assert shared(volume) == []


def test_an_archive_is_compressed(volume: Path, tmp_path: Path) -> None:
    Started(volume, tmp_path / "1").compile(GRAPH, content="x" * 1_000_000).healthy()
    assert archive(volume).stat().st_size < 100_000
    assert gzip.decompress(archive(volume).read_bytes())
