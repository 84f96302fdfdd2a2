"""Adds to the record of vLLM's releases what a new one has removed and brought.

For maintainers, by hand, once the pin is raised. ``PYTHONPATH=src .venv/bin/python
builder/vllm_history.py .vllm/0.32.0/bin/python`` compares the vLLM of that Python, the former one
(``make test-vllm`` installs it), to the one that runs the script, and adds the differences to
``src/worker/settings/history.json``.
"""

import argparse
import json
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import vllm
from listed import WORKERS
from packaging.version import Version

from worker.engine.options import Options
from worker.engine.seam.locations import find
from worker.settings import history


@dataclass(frozen=True)
class Release:
    """A release of vLLM: its version, and the sorted names of each kind that it has."""

    version: str
    names: Mapping[history.Kind, list[str]]


def installed() -> Release:
    """Read the vLLM that is installed here."""
    options = Options(WORKERS)
    choices = {f"{name}={choice}" for name in options.names for choice in options[name].choices}
    return Release(
        Version(vllm.__version__).public,
        {
            "options": sorted(options.names),
            "choices": sorted(choices),
            "architectures": sorted(find("ModelRegistry").get_supported_archs()),
        },
    )


def installed_for(python: str) -> Release:
    """Read the vLLM of another Python, by running this script there."""
    script = subprocess.run([python, __file__], stdout=subprocess.PIPE, text=True, check=True)
    return Release(**json.loads(script.stdout.splitlines()[-1]))


def update(record: Mapping[str, Any], before: Release, after: Release) -> dict[str, Any]:
    """Return the record with what differs between two releases."""
    updated: dict[str, Any] = deepcopy(dict(record))
    removed, added = updated["removed"], updated["added"]
    for kind in removed:
        old, new = set(before.names[kind]), set(after.names[kind])
        for name in sorted(old - new):
            removed[kind][name] = f"{before.version} {after.version}"
            added.get(kind, {}).pop(name, None)
        for name in sorted(new - old):
            removed[kind].pop(name, None)  # it is back
            if kind in added:  # nobody asks which release brought a choice
                added[kind].setdefault(name, after.version)
    return updated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("former", nargs="?", help="its Python; without, print what is installed")
    former = parser.parse_args().former
    if former is None:
        print(json.dumps(asdict(installed())))
        return
    updated = update(history.record(), installed_for(former), installed())
    history.RECORD.write_text(json.dumps(updated, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
