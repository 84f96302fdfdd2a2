"""Many workers with one volume: one downloads, the others wait, and one that ends hands over."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.hub.downloads import (
    HARDLY,
    PREFETCH,
    assert_ends,
    assert_prefetched,
    contents,
    environ,
    found,
    hold,
    hub_with,
    left_behind,
    sent,
    sent_once,
    size,
)
from support.hub.server import Hub
from support.processes.background import background, wait_until

from worker.store import Found

WAITING = "another worker downloads it"


@pytest.fixture
def served(source: Path) -> Iterator[Hub]:
    with hub_with(source) as running:
        running.throttle = HARDLY
        yield running


@pytest.fixture
def base(tmp_path: Path) -> Path:
    place = tmp_path / "volume"
    place.mkdir()
    return place


def test_eight_workers_that_start_together_download_every_file_once(
    served: Hub, source: Path, base: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(background(PREFETCH, environ(served, base), tmp_path / f"log-{n}"))
            for n in range(8)
        ]
        wait_until(lambda: sum(WAITING in worker.output for worker in workers) == 7)
        assert not isinstance(found(base), Found)
        served.throttle = None
        assert [worker.ended() for worker in workers] == [0] * 8
    assert sent_once(served, source)
    there = found(base)
    assert isinstance(there, Found)
    assert contents(there.place) == contents(source)
    assert all(
        f"commit {str(there.commit)[:12]}: {there.place}" in worker.output for worker in workers
    )


def test_a_prefetch_that_is_terminated_hands_over_at_once(
    served: Hub, source: Path, base: Path, tmp_path: Path
) -> None:
    with background(PREFETCH, environ(served, base), tmp_path / "log") as worker:
        hold(served, source)
        assert_ends(worker, base)
    assert not isinstance(found(base), Found)
    served.throttle = None
    # It did not wait for a lease that has no holder any more.
    assert WAITING not in assert_prefetched(served, source, base).stderr
    assert sent(served) < 1.5 * size(source)


def test_a_worker_whose_download_is_killed_ends_with_a_line(
    served: Hub, source: Path, base: Path, tmp_path: Path
) -> None:
    with background(PREFETCH, environ(served, base), tmp_path / "log") as worker:
        hold(served, source)
        (child,) = set(left_behind(str(base))) - {worker.process.pid}
        os.kill(child, signal.SIGKILL)
        assert worker.ended() == 1
    assert "The download was killed before it was complete" in worker.output.splitlines()[-1]
    assert "Traceback" not in worker.output
