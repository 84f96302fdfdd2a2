"""The resident memory of this process."""

import re
from pathlib import Path

STATUS = Path("/proc/self/status")


def rss_mb() -> float:
    return _read("VmRSS")


def reset_peak() -> None:
    """Reset the recorded maximum."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    return _read("VmHWM")


def _read(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None, "this needs Linux"
    return int(found[1]) / 1000
