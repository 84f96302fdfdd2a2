"""The memory of the machine and of a container."""

from pathlib import Path

import psutil
import pytest

from worker.process.memory import (
    count_oom_kills,
    free_memory_bytes,
    memory_limit,
    page_cache_capacity,
)

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
