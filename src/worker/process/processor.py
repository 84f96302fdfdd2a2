"""The processor's name for the SDK, which would measure the processor to learn it."""

from pathlib import Path

import cpuinfo

KERNELS = Path("/proc/cpuinfo")


def name_it_quickly() -> None:
    """Let the SDK read the name from the kernel when it is imported.

    It asks a library for all that can be known, and uses the name alone. The library starts a
    process, which counts ticks of the clock for a second while the engine needs the processor:
    https://github.com/workhorsy/py-cpuinfo/issues/155

    This is not in ``job_loop/sdk.py`` with what else is replaced of the SDK: it has to come before
    the SDK is imported, and importing the job loop would delay the engine's start by a second.
    """
    cpuinfo.get_cpu_info = read


def read(source: Path = KERNELS) -> dict[str, str]:
    """Return the processor's name under the library's key; nothing if the kernel has none."""
    for line in source.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return {"brand_raw": value.strip()}
    return {}
