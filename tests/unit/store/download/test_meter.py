"""The log lines of a download's progress."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat

import pytest
from support.hub.caches import NAME, WEIGHTS, On
from support.processes.background import HUNG_S, wait_until

from worker.store.download.meter import Meter, size

TB = 10**12


def watched(done: list[int], total: int, caplog: pytest.LogCaptureFixture) -> Meter:
    """Run a meter until it has logged a few lines."""
    caplog.set_level(logging.INFO)
    counts = chain(done, repeat(done[-1]))
    meter = Meter("org/name")
    with meter.of(total, lambda: next(counts)):
        wait_until(lambda: len(caplog.messages) >= 3)
    return meter


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "INTERVAL_S", 0.02)


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


def test_a_log_shows_how_far_it_is(on: On, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    on.hub.stalled = {WEIGHTS}
    with ThreadPoolExecutor() as pool:
        obtaining = pool.submit(on.obtain)
        wait_until(lambda: caplog.text.count(" left") > 1)
        on.hub.stalled = set()
        obtaining.result(HUNG_S)
    lines = [record.message for record in caplog.records if " of " in record.message]
    line = re.compile(rf"{NAME}: \S+B of 40\.1kB \(\d+ %\), \S+B/s, (\d\d:\d\d left|nothing comes)")
    assert all(map(line.fullmatch, lines)), lines
    assert any(text.endswith(" left") for text in lines), lines
    assert f"{NAME}: 40.1kB downloaded in " in caplog.text
