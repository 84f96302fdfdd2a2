"""Compiled code: published once as an archive on the volume, unpacked by later workers."""

import io
import json
import logging
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes.background import wait_until
from support.volume.compile_caches import (
    GRAPH,
    INDUCTOR,
    KERNEL,
    KEY,
    MODEL,
    OF_THE_MACHINE,
    PLAN,
    Started,
    Workers,
)

from worker.compile_cache import EASED_BYTES, STARTUP_PLAN, VARIABLES, prepare, publishing


@pytest.fixture
def workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Workers:
    for name in (*VARIABLES, STARTUP_PLAN):
        # Set first, so that what a start exports is taken back, too.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    caplog.set_level(logging.INFO, logger="worker")
    (tmp_path / "volume").mkdir()
    return Workers(tmp_path / "volume", tmp_path)


def test_what_one_worker_compiled_the_next_one_of_its_key_finds_with_its_age(
    workers: Workers,
) -> None:
    names = (GRAPH, INDUCTOR, KERNEL, MODEL)
    first, late = workers.start(1).compile(*names, OF_THE_MACHINE), workers.start(0)
    os.utime(first.local / GRAPH, (1000, 1000))
    first.healthy()
    second = workers.start(2)
    assert [first.knew, first.found, second.knew, second.found] == [False, False, True, True]
    assert all(map(second.holds, names))
    assert (second.local / GRAPH).stat().st_mtime == 1000
    # What is the machine's is not published.
    assert not second.holds(OF_THE_MACHINE)
    assert not workers.start(3, "vllm-2_cpu_0123").found
    # What is published is not published again.
    before = workers.archive().read_bytes()
    late.compile(GRAPH, content="again").healthy()
    assert workers.archive().read_bytes() == before


def test_no_code_makes_no_archive(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    (workers.disks / "1" / "inductor").mkdir(parents=True)
    workers.start(1).healthy()
    assert list(workers.volume.iterdir()) == []
    assert caplog.messages == []


def test_of_many_workers_one_publishes(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    started = [workers.start(number) for number in range(8)]
    for number, worker in enumerate(started):
        worker.compile(GRAPH, content=f"by {number} " * 100_000)
    with ThreadPoolExecutor(len(started)) as threads:
        list(threads.map(Started.healthy, started))
    ends = [message for message in caplog.messages if message.startswith(f"compile cache: {KEY}: ")]
    assert len(ends) == len(started)
    assert len([end for end in ends if ": published" in end]) == 1
    assert workers.published() == [KEY]
    # Compressed.
    assert workers.archive().stat().st_size < 100_000
    assert workers.start("next").found


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(lambda whole: whole[: len(whole) // 2], id="half"),
        pytest.param(lambda whole: whole[:-10], id="without its end"),
        pytest.param(lambda whole: whole[:999] + bytes([whole[999] ^ 1]) + whole[1000:], id="bit"),
    ],
)
def test_a_damaged_archive_is_not_trusted_and_made_again(
    workers: Workers, damaged: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    workers.start(1).compile(GRAPH).compile(KERNEL, content=os.urandom(100_000)).healthy()
    workers.archive().write_bytes(damaged(workers.archive().read_bytes()))
    second = workers.start(2)
    assert "can't be unpacked" in caplog.text
    assert [second.found, second.holds(GRAPH), second.holds(KERNEL)] == [False, False, False]
    second.compile(GRAPH).healthy()
    assert workers.start(3).holds(GRAPH)


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="of Python since 3.11.4")
def test_no_archive_leads_out_of_the_local_directory(workers: Workers) -> None:
    workers.archive().parent.mkdir()
    with tarfile.open(workers.archive(), "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    (workers.disks / "1").mkdir()
    assert not workers.start(1).found
    assert not (workers.disks / "outside").exists()


def test_what_can_not_be_read_stops_no_start_and_stays(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    # A directory in its place: reading fails, though not for what is in it.
    workers.archive().mkdir(parents=True)
    worker = workers.start(1).compile(GRAPH)
    assert not worker.found
    assert "can't be unpacked" in caplog.text
    worker.healthy()
    assert workers.archive().is_dir()
    assert f"{KEY}: not published" not in caplog.text


def test_a_lost_volume_is_reported(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    worker = workers.start(1).compile(GRAPH)
    workers.volume.rmdir()
    worker.healthy()
    assert [message for message in caplog.messages if "can't be published" in message] == [
        f"compile cache: {KEY}: can't be published: No such file or directory"
    ]


def test_a_publisher_that_fails_keeps_nothing_half_written(workers: Workers) -> None:
    folder = workers.start(1).compile(GRAPH, content=os.urandom(2**20)).local
    words = [publishing.__file__, str(workers.archive()), str(folder), "vllm"]
    # The kernel refuses to write more to one file, as it does on a disk that is full.
    command = ["bash", "-c", f'ulimit -f 512; exec {sys.executable} "$0" "$@"', *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "can't be published: File too large")
    assert workers.published() == []


def test_a_publisher_that_is_asked_to_end_keeps_nothing_half_written(workers: Workers) -> None:
    folder = workers.start(1).compile(GRAPH, content="").local
    with (folder / GRAPH).open("wb") as sparse:
        # It is packed for minutes.
        sparse.truncate(2**40)
    partial = workers.archive().with_name(workers.archive().name + ".partial")
    words = (publishing.__file__, str(workers.archive()), str(folder), "vllm")
    with subprocess.Popen([sys.executable, *words]) as publisher:
        wait_until(lambda: partial.exists() and partial.stat().st_size)
        publisher.terminate()
    assert not partial.exists()
    assert workers.published() == []


def test_what_a_dead_worker_left_is_removed_when_it_is_old(workers: Workers) -> None:
    partial = workers.archive().with_name(workers.archive().name + ".partial")
    partial.parent.mkdir()
    partial.touch()
    workers.start(1).compile(GRAPH).healthy()
    assert workers.published() == [partial.name]
    long_ago = time.time() - publishing.ABANDONED_S - 10
    os.utime(partial, (long_ago, long_ago))
    workers.start(2).compile(GRAPH).healthy()
    assert workers.published() == [KEY]


def test_a_worker_that_was_frozen_while_it_packed_publishes_nothing(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workers.start(1).compile(GRAPH).local
    monkeypatch.setattr(publishing, "LONGEST_S", -1.0)
    with pytest.raises(publishing.Stopped, match="begun it anew"):
        publishing.publish(workers.archive(), folder, ["vllm"])
    assert workers.published() == []


def test_an_archive_that_is_not_used_any_more_makes_room(workers: Workers) -> None:
    long_ago = time.time() - publishing.UNUSED_S - 10
    for key in ("used", "unused"):
        workers.start(key, key).compile(GRAPH).healthy()
    for key in ("used", "unused"):
        os.utime(workers.archive(key), (long_ago, long_ago))
    assert workers.start("again", "used").found
    workers.start("new", "new").compile(GRAPH).healthy()
    assert workers.published() == ["new", "used"]


# Where a start compiles to, and when it may plan its memory:


def test_a_start_that_compiles_makes_no_plan(workers: Workers) -> None:
    first = workers.start(1)
    assert os.environ[STARTUP_PLAN] == ""
    first.compile(GRAPH, PLAN).healthy()
    assert workers.published() == [KEY]
    assert not first.holds(PLAN)


def test_the_second_start_makes_the_plan_and_the_third_one_finds_it(workers: Workers) -> None:
    workers.start(1).compile(GRAPH).healthy()
    second = workers.start(2)
    assert os.environ[STARTUP_PLAN] == "1"
    assert not second.holds(PLAN)
    # Inductor's own part grows, without anything being compiled again.
    second.compile(PLAN, INDUCTOR).healthy()
    assert workers.published() == [KEY, f"{KEY}.plan"]
    assert workers.start(3).holds(PLAN)


def test_a_plan_holds_with_somewhat_less_memory_and_is_eased_once(workers: Workers) -> None:
    workers.start(1).compile(GRAPH).healthy()
    plan = {"schema": 1, "kv_cache_memory_bytes": 5 << 30, "free_memory_baseline": 9 << 30}
    second = workers.start(2).compile(PLAN, content=json.dumps(plan)).healthy()
    eased = {**plan, "free_memory_baseline": (9 << 30) - EASED_BYTES}
    # A core that takes over finds it, too.
    assert json.loads((second.local / PLAN).read_bytes()) == eased
    third = workers.start(3).healthy()
    assert json.loads((third.local / PLAN).read_bytes()) == eased


@pytest.mark.parametrize("content", ["compiled", "[]", "{}", '{"free_memory_baseline": null}'])
def test_a_plan_in_another_form_is_left_as_it_is(content: str, workers: Workers) -> None:
    workers.start(1).compile(GRAPH).healthy()
    workers.start(2).compile(PLAN, content=content).healthy()
    assert (workers.start(3).local / PLAN).read_text() == content


def test_a_start_that_compiled_again_makes_no_plan_whether_it_becomes_healthy_or_dies(
    workers: Workers,
) -> None:
    workers.start(1).compile(GRAPH).healthy()
    workers.start(2).compile(GRAPH, PLAN, content="again")
    again = workers.start(2)
    assert not again.holds(PLAN)
    again.compile(GRAPH, PLAN, content="once more").healthy()
    assert workers.published() == [KEY]
    assert not again.holds(PLAN)


def test_the_operator_decides_of_plans(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.start(1).compile(GRAPH).healthy()
    monkeypatch.setenv(STARTUP_PLAN, "0")
    assert workers.start(2).found
    assert os.environ[STARTUP_PLAN] == "0"


def test_everything_compiled_goes_to_one_place(workers: Workers) -> None:
    cache = prepare(workers.volume)
    assert cache
    assert cache.local == workers.disks / "home" / ".cache" / "worker-compiled"
    assert {name: os.environ[name] for name in VARIABLES} == {
        name: str(cache.local / folder) for name, folder in VARIABLES.items()
    }
    # As a child of the worker finds it.
    assert prepare(workers.volume)


@pytest.mark.parametrize("name", VARIABLES)
def test_an_operators_own_directory_is_left_alone(
    workers: Workers, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "/own")
    assert prepare(workers.volume) is None
    assert f"because {name} is set" in caplog.text
    assert {name: os.environ[name] for name in VARIABLES if os.environ[name]} == {name: "/own"}


def test_without_a_volume_nothing_is_kept(workers: Workers) -> None:
    assert prepare(workers.volume / "none") is None
    assert not any(os.environ[name] for name in VARIABLES)
    assert not (workers.disks / "home").exists()


def test_without_a_home_nothing_is_kept(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    assert prepare(workers.volume) is None
    assert "there is no place for it here" in caplog.text
