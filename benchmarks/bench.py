"""What the benchmarks share: paths, options, the line about the machine, and the output.

Importing this module makes `src` importable, and nothing else, because some benchmarks measure
imports. What they measure with is in `proof.measure`, and in `endpoint`.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEMO_MODEL = ROOT / ".models" / "demo"
sys.path.insert(0, str(ROOT / "src"))


def options(
    description: str | None, rounds: int = 3, *, writes_json: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the common options, with `--json` only if `writes_json` is set."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    if writes_json:
        parser.add_argument(
            "--json", type=path, metavar="FILE", help="write all figures to this file"
        )
    return parser


def path(text: str) -> Path:
    """Return the absolute path of an argument, because processes run in another directory."""
    return Path(text).absolute()


def write_json(file: Path | None, figures: Any) -> None:
    """Write all figures to the file of `--json`, if it is set."""
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(figures, indent=1) + "\n")


def machine() -> str:
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"
