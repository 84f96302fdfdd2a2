"""The log lines of a download's progress."""

import logging
from itertools import chain, repeat

import pytest

from worker.store.download import ProgressMeter

TB = 10**12


@pytest.mark.parametrize(
    ("done", "total", "first", "last"),
    [
        ([TB, TB + 1000], 2 * TB, "1.00TB of 2.00TB (50 %), ", "1.00TB downloaded in "),
        ([100, 300], 40_077, "300B of 40.1kB (1 %), ", "40.0kB downloaded in "),
        # Nothing is downloaded if all files were already there.
        ([1000], 1000, "1.00kB of 1.00kB (100 %), 0.00B/s, nothing comes", "1.00kB of 1.00kB "),
    ],
    ids=["half", "little", "all"],
)
def test_progress_is_logged_and_readable(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    done: list[int],
    total: int,
    first: str,
    last: str,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(ProgressMeter, "INTERVAL_S", 0)
    counts = chain(done, repeat(done[-1]))
    meter = ProgressMeter("org/name")
    assert meter.stored_and_total_bytes() == (0, 0)
    meter.begin(total, lambda: next(counts))
    meter.log_progress()
    meter.log_progress()
    meter.log_duration()
    assert meter.stored_and_total_bytes() == (done[-1], total)
    line = caplog.messages[0]
    assert line.startswith(f"org/name: {first}")
    # Files that were already there don't count for the rate.
    assert (line.endswith(" left"), "TB/s" in line) == (len(done) > 1, False)
    assert caplog.messages[-1].startswith(f"org/name: {last}")
