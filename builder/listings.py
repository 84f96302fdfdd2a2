"""Writes the files that list settings and limits: forms, the client's data, and pages.

``python builder/listings.py`` writes the files into the repository. With ``--check`` it compares
them instead, names those that differ, and exits with 1 if there are any.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import badges
import client
import models
import pages
import recipes
import vllm
from catalogue import Catalogue
from forms import Forms
from packaging.version import Version

from worker.doctor.gpus import POOLS

ROOT = Path(__file__).parent.parent


def build_files() -> dict[str, str]:
    """Return the contents of all files, by their paths in the repository."""
    release = Version(vllm.__version__).public
    catalogue = Catalogue()
    forms = Forms(catalogue, release)
    return {
        "worker-config.json": _json(forms.console()),
        ".runpod/hub.json": _json(forms.hub()),
        ".runpod/load-balancing/hub.json": _json(forms.hub(endpointType="LB")),
        "src/llm_worker_client/deploy/settings.json": _json(client.settings(catalogue, release)),
        "src/llm_worker_client/deploy/pools.json": _json(_gpu_pools()),
        "docs/settings.md": pages.build_settings_page(catalogue, release),
        "docs/reference/limits.md": pages.build_limits_page(),
        models.PAGE: models.build_page(release),
        **recipes.build_files(),
        **badges.build_files(),
    }


def find_outdated(files: Mapping[str, str]) -> list[str]:
    """Return the names of the files that are missing or differ in the repository."""
    return [
        name
        for name, content in files.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text() != content
    ]


def _gpu_pools() -> dict[str, Any]:
    return {pool.id: {"gb": pool.gb, "gpus": [gpu.name for gpu in pool.types]} for pool in POOLS}


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare the files without writing them"
    )
    check = parser.parse_args(arguments).check
    files = build_files()
    outdated = find_outdated(files)
    if check and outdated:
        sys.exit(f"outdated: {', '.join(outdated)}; run: make listings")
    for name in outdated:
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(files[name])
    print(f"{len(outdated)} of {len(files)} files changed")


if __name__ == "__main__":
    main()
