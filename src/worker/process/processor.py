"""Reads the processor's name for the SDK, so that the SDK doesn't benchmark the processor."""

from pathlib import Path

import cpuinfo

CPUINFO = Path("/proc/cpuinfo")


def skip_processor_benchmark() -> None:
    """Make the SDK read the processor's name from the kernel.

    Before version 2.0 the SDK reads the name when it is imported. It uses only the name, but the
    cpuinfo library, which it calls, also starts a process that counts clock ticks for a second. At
    that time the engine's startup needs the processor:
    https://github.com/workhorsy/py-cpuinfo/issues/155

    This function is not in ``job_loop/sdk.py`` with the other replacements because it must run
    before the SDK is imported, and importing the job loop would delay the engine's startup by a
    second.
    """
    cpuinfo.get_cpu_info = cpu_info_with_name_only


def cpu_info_with_name_only(source: Path = CPUINFO) -> dict[str, str]:
    """Return the processor's name under cpuinfo's key for it; an empty dict if it has no name."""
    for line in source.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return {"brand_raw": value.strip()}
    return {}
