"""How much memory the process may use."""

from pathlib import Path

import psutil
import pytest

from worker.memory import available_memory, free_memory, memory_limit

# What version 1 of control groups says where there is no limit.
NO_LIMIT = str(2**63 - 4096)


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_containers_limit_bounds_its_memory(tmp_path: Path, file: str) -> None:
    limit = tmp_path / file
    limit.parent.mkdir(exist_ok=True)
    limit.write_text("4096\n")
    assert memory_limit(tmp_path) == available_memory(tmp_path) == 4096


@pytest.mark.parametrize(
    ("file", "limit"), [("memory.max", "max"), ("memory/memory.limit_in_bytes", NO_LIMIT)]
)
def test_a_container_without_a_limit_has_what_the_machine_has(
    tmp_path: Path, file: str, limit: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(f"{limit}\n")
    physical = psutil.virtual_memory().total
    assert memory_limit(tmp_path) == physical
    assert 4096 < available_memory(tmp_path) < physical


def test_a_machine_without_control_groups_has_its_physical_memory(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "none") == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("limit", "used", "statistics", "cache"),
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ],
)
def test_free_in_a_container_is_what_nobody_uses_and_the_page_cache(
    tmp_path: Path, limit: str, used: str, statistics: str, cache: str
) -> None:
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text("4096\n")
    (tmp_path / used).write_text("3000\n")
    (tmp_path / statistics).write_text(f"anon 2000\n{cache} 1000\n")
    assert free_memory(tmp_path) == 4096 - 3000 + 1000
    (tmp_path / used).write_text("6000\n")
    assert free_memory(tmp_path) == 0


def test_free_without_a_container_is_what_the_machine_has_left(tmp_path: Path) -> None:
    assert 4096 < free_memory(tmp_path) < psutil.virtual_memory().total


def test_a_container_without_statistics_has_no_page_cache_to_give_up(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("4096\n")
    (tmp_path / "memory.current").write_text("3000\n")
    assert free_memory(tmp_path) == 4096 - 3000
