"""The process and its machine: memory, garbage, the processor's name."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cpuinfo
import psutil
import pytest
from support import ROOT

from worker.process import processor
from worker.process.garbage import pause_and_freeze_gc
from worker.process.memory import (
    count_oom_kills,
    free_memory_bytes,
    memory_limit,
    page_cache_capacity,
)

# Memory:

# The value that version 1 of control groups reports without a limit.
NO_LIMIT = str(2**63 - 4096)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(f"{text}\n")


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_containers_limit_bounds_its_memory(tmp_path: Path, file: str) -> None:
    write(tmp_path, {file: "4096"})
    assert memory_limit(tmp_path) == page_cache_capacity(tmp_path) == 4096


@pytest.mark.parametrize(
    "files", [{"memory.max": "max"}, {"memory/memory.limit_in_bytes": NO_LIMIT}, {}], ids=str
)
def test_without_a_limit_the_machine_is_the_limit(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    physical = psutil.virtual_memory().total
    assert memory_limit(tmp_path) == physical
    assert 4096 < page_cache_capacity(tmp_path) < physical
    assert 4096 < free_memory_bytes(tmp_path) < physical


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"memory.events": "low 0\noom 3\noom_kill 2"}, 2),
        ({"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1"}, 1),
        ({"memory/memory.oom_control": "oom_kill_disable 0"}, None),
        ({}, None),
    ],
)
def test_processes_that_the_kernel_killed_for_memory_are_counted(
    tmp_path: Path, files: dict[str, str], count: int | None
) -> None:
    write(tmp_path, files)
    assert count_oom_kills(tmp_path) == count


OF_V1 = ["memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"]


@pytest.mark.parametrize(
    ("names", "used", "statistics", "free"),
    [
        (["memory.max", "memory.current", "memory.stat"], 3000, "inactive_file 1000", 2096),
        (OF_V1, 3000, "total_inactive_file 1000", 2096),
        (OF_V1, 6000, "total_inactive_file 1000", 0),
        (["memory.max", "memory.current"], 3000, None, 1096),
    ],
)
def test_free_memory_in_a_container_includes_the_page_cache(
    tmp_path: Path, names: list[str], used: int, statistics: str | None, free: int
) -> None:
    texts = ["4096", str(used), f"anon 2000\n{statistics}"]
    write(tmp_path, dict(zip(names, texts, strict=False)))
    assert free_memory_bytes(tmp_path) == free


# Garbage:


@pytest.fixture
def unfreeze_objects() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unfreeze_objects")
@pytest.mark.parametrize("enabled", [True, False])
def test_collection_pauses_in_the_block_and_later_ignores_its_objects(
    enabled: bool,
) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with pause_and_freeze_gc():
            assert not gc.isenabled()
            built = [[number] for number in range(1000)]
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    tracked = {id(found) for found in gc.get_objects()}
    assert not tracked & {id(one) for one in built}


# Runs in its own process because fork handlers can't be removed.
FORKS = """
import gc, os
from worker.process.garbage import enable_gc_in_forks, pause_and_freeze_gc
with pause_and_freeze_gc():
    shared = [[] for _ in range(1000)]
    enable_gc_in_forks()
    if not os.fork():
        looked_at = {id(found) for found in gc.get_objects()}
        os._exit(0 if gc.isenabled() and not looked_at & {*map(id, shared)} else 1)
    assert not gc.isenabled()
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_fork_collects_its_own_garbage_and_ignores_shared_objects() -> None:
    environ = {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", FORKS], env=environ, check=True, timeout=300)


# The processor:


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor\t: 0\nmodel name\t: A 9: two\n\nprocessor\t: 1\n", {"brand_raw": "A 9: two"}),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", {}),
    ],
)
def test_the_processors_name_is_the_kernels(
    tmp_path: Path, text: str, found: dict[str, str]
) -> None:
    source = tmp_path / "cpuinfo"
    source.write_text(text)
    assert processor.cpu_info_with_name_only(source) == found


def test_the_librarys_benchmark_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpuinfo, "get_cpu_info", None)
    processor.skip_processor_benchmark()
    assert cpuinfo.get_cpu_info() == processor.cpu_info_with_name_only()
