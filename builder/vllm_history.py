"""Updates the record of options that vLLM's releases removed and added.

Maintainers run this by hand after they have changed the pinned release. ``PYTHONPATH=src
.venv/bin/python builder/vllm_history.py .nox/vllm-0-32-0/bin/python`` compares the vLLM of that
Python, the previous release, with the vLLM of the Python that runs the script, and adds the
differences to ``src/worker/settings/history.json``. ``nox -s vllm`` installs the previous release.
"""

import argparse
import json
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import vllm
from catalogue import REFERENCE_MACHINE
from packaging.version import Version

from worker.engine.options import Options
from worker.engine.seam.locations import import_from_vllm
from worker.settings import history


@dataclass(frozen=True)
class Release:
    """A release of vLLM: its version, and its sorted names of each kind."""

    version: str
    names: Mapping[history.EntryKind, list[str]]


def read_installed() -> Release:
    """Read the names of the vLLM that is installed here."""
    options = Options(REFERENCE_MACHINE)
    choices = {f"{name}={choice}" for name in options.names for choice in options[name].choices}
    return Release(
        Version(vllm.__version__).public,
        {
            "options": sorted(options.names),
            "choices": sorted(choices),
            "architectures": sorted(import_from_vllm("ModelRegistry").get_supported_archs()),
        },
    )


def read_release_of(python: str) -> Release:
    """Read the names of another Python's vLLM, by running this script with that Python."""
    process = subprocess.run([python, __file__], stdout=subprocess.PIPE, text=True, check=True)
    return Release(**json.loads(process.stdout.splitlines()[-1]))


def update(record: Mapping[str, Any], before: Release, after: Release) -> dict[str, Any]:
    """Return the record with the differences between two releases."""
    updated: dict[str, Any] = deepcopy(dict(record))
    removed, added = updated["removed"], updated["added"]
    for kind in removed:
        old, new = set(before.names[kind]), set(after.names[kind])
        for name in sorted(old - new):
            removed[kind][name] = f"{before.version} {after.version}"
            added.get(kind, {}).pop(name, None)
        for name in sorted(new - old):
            removed[kind].pop(name, None)  # it has returned
            if kind in added:  # the record doesn't list new choices
                added[kind].setdefault(name, after.version)
    return updated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "former",
        nargs="?",
        help="Python of the previous release; without it, print the installed names",
    )
    former = parser.parse_args().former
    if former is None:
        print(json.dumps(asdict(read_installed())))
        return
    updated = update(history.load_history(), read_release_of(former), read_installed())
    history.HISTORY_FILE.write_text(json.dumps(updated, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
