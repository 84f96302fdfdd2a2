"""Reads the processor's name for the SDK, so that the SDK doesn't benchmark the processor."""

from pathlib import Path

import cpuinfo

CPUINFO = Path("/proc/cpuinfo")


def skip_processor_benchmark() -> None:
    """Make the SDK read the processor's name from the kernel when the SDK is imported.

    The SDK uses only the name, but its library also starts a process that counts clock ticks for a
    second, while the engine needs the processor:
    https://github.com/workhorsy/py-cpuinfo/issues/155

    This function is not in ``job_loop/sdk.py`` with the other replacements because it must run
    before the SDK is imported, and importing the job loop would delay the engine's startup by a
    second.
    """
    cpuinfo.get_cpu_info = read_cpu_info


def read_cpu_info(source: Path = CPUINFO) -> dict[str, str]:
    """Return the processor's name under the library's key; an empty dict if there is no name."""
    for line in source.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return {"brand_raw": value.strip()}
    return {}
