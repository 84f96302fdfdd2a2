"""The start of a process, without garbage collection and benchmarks, and its exit."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import cpuinfo
import pytest
from support import ROOT

from worker.process import lifetime
from worker.process.lifetime import (
    call_at_exit,
    call_exit_functions,
    cpu_info_with_name_only,
    pause_and_freeze_gc,
    skip_processor_benchmark,
)

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
from worker.process.lifetime import enable_gc_in_forks, pause_and_freeze_gc
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
    assert cpu_info_with_name_only(source) == found


def test_the_librarys_benchmark_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpuinfo, "get_cpu_info", None)
    skip_processor_benchmark()
    assert cpuinfo.get_cpu_info() == cpu_info_with_name_only()


def test_the_exit_waits_for_all_functions_but_not_for_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifetime, "_exit_functions", [])
    monkeypatch.setattr(lifetime, "EXIT_TIMEOUT_S", 0.1)
    released, done = threading.Event(), threading.Event()

    def hang() -> None:
        released.wait()

    call_at_exit(hang)
    call_at_exit(done.set)
    call_exit_functions()
    assert done.is_set()
    released.set()
