"""The compile cache: published once as an archive on the volume, unpacked by later workers."""

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
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.processes.background import wait_until

from worker import compile_cache
from worker.compile_cache import (
    PLAN_SLACK_BYTES,
    STARTUP_PLAN,
    VARIABLES,
    CompileCache,
    publishing,
    set_up_compile_cache,
)

KEY = "vllm-1_cpu_0123"
GRAPH = "vllm/torch_compile_cache/abc/rank_0_0/model"
INDUCTOR = "vllm/torch_compile_cache/abc/inductor_cache/k.so"
KERNEL = "triton/AB/kernel.cubin"
PLAN = "vllm/startup_plan/startup_plan_1.json"
MODEL = "vllm/modelinfos/llama.json"
MACHINE_FILE = "vllm/gpu_p2p_access_cache_for_0,1.json"


class CompilingWorker:
    """A worker in its own container that restores files from the shared cache, and may compile."""

    def __init__(self, shared: Path, folder: Path, key: str) -> None:
        self.local = folder
        self.cache = CompileCache(shared, folder)
        self.restored = self.cache.restore_code(key)

    def compile(self, *names: str, content: str | bytes = "compiled") -> "CompilingWorker":
        for name in names:
            file = self.local / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def publish(self) -> "CompilingWorker":
        self.cache.start_publishing().join()
        return self

    def has_file(self, name: str) -> bool:
        return (self.local / name).is_file()


@dataclass
class Workers:
    """A volume that workers share, and a folder for their disks."""

    volume: Path
    disks: Path

    def start(self, disk: int | str, key: str = KEY) -> CompilingWorker:
        return CompilingWorker(
            self.volume / compile_cache.SHARED_DIRECTORY, self.disks / str(disk), key
        )

    def archive(self, name: str = KEY) -> Path:
        return self.volume / compile_cache.SHARED_DIRECTORY / f"{name}{publishing.SUFFIX}"

    def shared_entries(self) -> list[str]:
        """Return the names of all files of the shared cache, without the suffix of archives."""
        files = (self.volume / compile_cache.SHARED_DIRECTORY).glob("*")
        return sorted(path.name.removesuffix(publishing.SUFFIX) for path in files)


@pytest.fixture
def workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Workers:
    for name in (*VARIABLES, STARTUP_PLAN):
        # Set first, so that the values that startup exports are also undone.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    caplog.set_level(logging.INFO, logger="worker")
    (tmp_path / "volume").mkdir()
    return Workers(tmp_path / "volume", tmp_path)


def test_a_worker_restores_code_with_file_times_from_another_worker_of_its_key(
    workers: Workers,
) -> None:
    names = (GRAPH, INDUCTOR, KERNEL, MODEL)
    first, late_worker = workers.start(1).compile(*names, MACHINE_FILE), workers.start(0)
    os.utime(first.local / GRAPH, (1000, 1000))
    assert (first.cache.restore_model_info(KEY), first.restored) == (False, False)
    first.publish()
    second = workers.start(2)
    assert (second.cache.restore_model_info(KEY), second.restored) == (True, True)
    assert all(map(second.has_file, names))
    assert (second.local / GRAPH).stat().st_mtime == 1000
    # Files for this machine only are not published.
    assert not second.has_file(MACHINE_FILE)
    assert not workers.start(3, "vllm-2_cpu_0123").restored
    # A published archive is not replaced.
    before = workers.archive().read_bytes()
    late_worker.compile(GRAPH, content="again").publish()
    assert workers.archive().read_bytes() == before


def test_no_archive_is_published_without_code(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    (workers.disks / "1" / "inductor").mkdir(parents=True)
    workers.start(1).publish()
    assert list(workers.volume.iterdir()) == []
    assert caplog.messages == []


def test_one_of_many_workers_publishes(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    running_workers = [workers.start(number) for number in range(5)]
    for number, worker in enumerate(running_workers):
        worker.compile(GRAPH, content=f"by {number} " * 100_000)
    with ThreadPoolExecutor(len(running_workers)) as threads:
        list(threads.map(CompilingWorker.publish, running_workers))
    messages = [
        message for message in caplog.messages if message.startswith(f"compile cache: {KEY}: ")
    ]
    assert len(messages) == len(running_workers)
    assert len([message for message in messages if ": published" in message]) == 1
    assert workers.shared_entries() == [KEY]
    # The archive is compressed.
    assert workers.archive().stat().st_size < 100_000
    assert workers.start("next").restored


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda archive: archive[: len(archive) // 2], id="half"),
        pytest.param(lambda archive: archive[:-10], id="cut end"),
        pytest.param(
            lambda archive: archive[:999] + bytes([archive[999] ^ 1]) + archive[1000:],
            id="flipped bit",
        ),
    ],
)
def test_a_damaged_archive_is_ignored_and_replaced(
    workers: Workers, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    workers.start(1).compile(GRAPH).compile(KERNEL, content=os.urandom(100_000)).publish()
    workers.archive().write_bytes(damage(workers.archive().read_bytes()))
    second = workers.start(2)
    assert "can't be unpacked" in caplog.text
    assert second.restored is False
    assert not any(map(second.has_file, (GRAPH, KERNEL)))
    second.compile(GRAPH).publish()
    assert workers.start(3).has_file(GRAPH)


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="needs Python 3.11.4 or later")
def test_an_archive_can_not_write_outside_the_local_directory(workers: Workers) -> None:
    workers.archive().parent.mkdir()
    with tarfile.open(workers.archive(), "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    (workers.disks / "1").mkdir()
    assert not workers.start(1).restored
    assert not (workers.disks / "outside").exists()


def test_an_unreadable_archive_does_not_prevent_startup_and_stays(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    # A directory in place of the archive can't be read, but is not damaged.
    workers.archive().mkdir(parents=True)
    worker = workers.start(1).compile(GRAPH)
    assert not worker.restored
    assert "can't be unpacked" in caplog.text
    worker.publish()
    assert workers.archive().is_dir()
    assert f"{KEY}: not published" not in caplog.text


def test_a_lost_volume_is_reported(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    worker = workers.start(1).compile(GRAPH)
    workers.volume.rmdir()
    worker.publish()
    assert [message for message in caplog.messages if "can't be published" in message] == [
        f"compile cache: {KEY}: can't be published: No such file or directory"
    ]


def test_a_failed_publisher_leaves_no_partial_archive(workers: Workers) -> None:
    folder = workers.start(1).compile(GRAPH, content=os.urandom(2**20)).local
    arguments = [publishing.__file__, str(workers.archive()), str(folder), "vllm"]
    # The kernel limits the size of files, so writing fails as on a full disk.
    command = ["bash", "-c", f'ulimit -f 512; exec {sys.executable} "$0" "$@"', *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (1, "can't be published: File too large")
    assert workers.shared_entries() == []


def test_a_terminated_publisher_leaves_no_partial_archive(workers: Workers) -> None:
    folder = workers.start(1).compile(GRAPH, content="").local
    with (folder / GRAPH).open("wb") as sparse:
        # Packing this file takes minutes.
        sparse.truncate(2**40)
    partial = workers.archive().with_name(workers.archive().name + ".partial")
    arguments = (publishing.__file__, str(workers.archive()), str(folder), "vllm")
    with subprocess.Popen([sys.executable, *arguments]) as publisher:
        wait_until(lambda: partial.exists() and partial.stat().st_size)
        publisher.terminate()
    assert not partial.exists()
    assert workers.shared_entries() == []


def test_an_old_partial_archive_of_a_dead_worker_is_removed(workers: Workers) -> None:
    partial = workers.archive().with_name(workers.archive().name + ".partial")
    partial.parent.mkdir()
    partial.touch()
    workers.start(1).compile(GRAPH).publish()
    assert workers.shared_entries() == [partial.name]
    long_ago = time.time() - publishing.ABANDONED_S - 10
    os.utime(partial, (long_ago, long_ago))
    workers.start(2).compile(GRAPH).publish()
    assert workers.shared_entries() == [KEY]


def test_a_worker_that_froze_while_packing_publishes_nothing(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workers.start(1).compile(GRAPH).local
    monkeypatch.setattr(publishing, "MAX_PACKING_S", -1.0)
    with pytest.raises(publishing.NotPublished, match="started over"):
        publishing.publish_archive(workers.archive(), folder, ["vllm"])
    assert workers.shared_entries() == []


def test_archives_that_are_no_longer_used_are_removed(workers: Workers) -> None:
    long_ago = time.time() - publishing.UNUSED_S - 10
    for key in ("used", "unused"):
        workers.start(key, key).compile(GRAPH).publish()
    for key in ("used", "unused"):
        os.utime(workers.archive(key), (long_ago, long_ago))
    assert workers.start("again", "used").restored
    workers.start("new", "new").compile(GRAPH).publish()
    assert workers.shared_entries() == ["new", "used"]


# Plans of memory, and the directories of compiled code:


def test_a_startup_that_compiles_publishes_no_plan(workers: Workers) -> None:
    first = workers.start(1)
    assert os.environ[STARTUP_PLAN] == ""
    first.compile(GRAPH, PLAN).publish()
    assert workers.shared_entries() == [KEY]
    assert not first.has_file(PLAN)


def test_the_second_startup_publishes_a_plan_and_the_third_one_restores_it(
    workers: Workers,
) -> None:
    workers.start(1).compile(GRAPH).publish()
    second = workers.start(2)
    assert os.environ[STARTUP_PLAN] == "1"
    assert not second.has_file(PLAN)
    # Inductor's directory grows, but nothing is compiled again.
    second.compile(PLAN, INDUCTOR).publish()
    assert workers.shared_entries() == [KEY, f"{KEY}.plan"]
    assert workers.start(3).has_file(PLAN)


def test_a_plan_is_relaxed_once_to_tolerate_slightly_less_memory(workers: Workers) -> None:
    workers.start(1).compile(GRAPH).publish()
    plan = {"schema": 1, "kv_cache_memory_bytes": 5 << 30, "free_memory_baseline": 9 << 30}
    second = workers.start(2).compile(PLAN, content=json.dumps(plan)).publish()
    relaxed = {**plan, "free_memory_baseline": (9 << 30) - PLAN_SLACK_BYTES}
    # A core that takes over reads this plan, too.
    assert json.loads((second.local / PLAN).read_bytes()) == relaxed
    third = workers.start(3).publish()
    assert json.loads((third.local / PLAN).read_bytes()) == relaxed


@pytest.mark.parametrize("content", ["compiled", "[]", "{}", '{"free_memory_baseline": null}'])
def test_a_plan_in_another_form_is_unchanged(content: str, workers: Workers) -> None:
    workers.start(1).compile(GRAPH).publish()
    workers.start(2).compile(PLAN, content=content).publish()
    assert (workers.start(3).local / PLAN).read_text() == content


def test_a_startup_that_compiles_again_publishes_no_plan_even_after_a_crash(
    workers: Workers,
) -> None:
    workers.start(1).compile(GRAPH).publish()
    workers.start(2).compile(GRAPH, PLAN, content="again")
    repeated = workers.start(2)
    assert not repeated.has_file(PLAN)
    repeated.compile(GRAPH, PLAN, content="once more").publish()
    assert workers.shared_entries() == [KEY]
    assert not repeated.has_file(PLAN)


def test_the_operator_can_disable_plans(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.start(1).compile(GRAPH).publish()
    monkeypatch.setenv(STARTUP_PLAN, "0")
    assert workers.start(2).restored
    assert os.environ[STARTUP_PLAN] == "0"


def test_all_compiled_code_goes_to_one_directory(workers: Workers) -> None:
    cache = set_up_compile_cache(workers.volume)
    assert cache
    assert cache.local == workers.disks / "home" / ".cache" / "worker-compiled"
    assert {name: os.environ[name] for name in VARIABLES} == {
        name: str(cache.local / folder) for name, folder in VARIABLES.items()
    }
    # A child process of the worker can prepare the cache, too.
    assert set_up_compile_cache(workers.volume)


@pytest.mark.parametrize("name", VARIABLES)
def test_an_operators_own_directory_disables_the_cache(
    workers: Workers, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "/own")
    assert set_up_compile_cache(workers.volume) is None
    assert f"because {name} is set" in caplog.text
    assert {name: os.environ[name] for name in VARIABLES if os.environ[name]} == {name: "/own"}


def test_there_is_no_cache_without_a_volume(workers: Workers) -> None:
    assert set_up_compile_cache(workers.volume / "none") is None
    assert not any(os.environ[name] for name in VARIABLES)
    assert not (workers.disks / "home").exists()


def test_there_is_no_cache_without_a_home_directory(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    assert set_up_compile_cache(workers.volume) is None
    assert "its directory can't be created" in caplog.text
