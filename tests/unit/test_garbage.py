import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support import ROOT

from worker.garbage import uncollected


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_nothing_is_collected_in_the_block_and_what_it_built_is_not_looked_at_later() -> None:
    with uncollected():
        assert not gc.isenabled()
        built = [[number] for number in range(1000)]
    assert gc.isenabled()
    looked_at = {id(found) for found in gc.get_objects()}
    assert not looked_at & {id(one) for one in built}


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


# In a process of its own, because what runs at forks can't be removed.
FORKS = """
import gc, os
from worker.garbage import collect_in_forks, uncollected
with uncollected():
    shared = [[] for _ in range(1000)]
    collect_in_forks()
    if not os.fork():
        looked_at = {id(found) for found in gc.get_objects()}
        os._exit(0 if gc.isenabled() and not looked_at & {*map(id, shared)} else 1)
    assert not gc.isenabled()
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_fork_collects_its_own_garbage_and_leaves_alone_what_it_shares() -> None:
    environ = {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", FORKS], env=environ, check=True, timeout=300)
