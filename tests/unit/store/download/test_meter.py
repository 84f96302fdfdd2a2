"""The log lines of a download's progress."""

import logging
import time
from itertools import chain, repeat

import pytest

from worker.store.download.meter import Meter, size

TB = 10**12


@pytest.fixture(autouse=True)
def _lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Meter, "INTERVAL_S", 0.02)


def watched(done: list[int], total: int, caplog: pytest.LogCaptureFixture) -> Meter:
    """Run a meter until it has logged a few lines."""
    counts = chain(done, repeat(done[-1]))
    meter = Meter("org/name")
    with meter.of(total, lambda: next(counts)):
        deadline = time.monotonic() + 60
        while len(caplog.messages) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return meter


def test_what_was_there_before_counts_for_the_share_and_not_for_the_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched([TB, TB + 1000], 2 * TB, caplog)
    line = caplog.messages[0]
    assert line.startswith("org/name: 1.00TB of 2.00TB (50 %), ")
    assert "TB/s" not in line
    assert caplog.messages[-1].startswith("org/name: 1.00TB downloaded in ")


def test_where_everything_is_there_nothing_is_said_to_have_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched([1000], 1000, caplog)
    assert "downloaded" not in caplog.text


def test_a_lease_can_say_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    assert Meter("org/name").read() == (0, 0)
    assert watched([100, 300], 1000, caplog).read() == (300, 1000)


@pytest.mark.parametrize(
    ("count", "written"), [(0, "0.00B"), (999, "999B"), (40_077, "40.1kB"), (7 * TB, "7.00TB")]
)
def test_sizes_are_written_in_powers_of_ten(count: int, written: str) -> None:
    assert size(count) == written
