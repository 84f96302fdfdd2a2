"""Reads the receipts that workers have stored on a volume."""

import json
from pathlib import Path
from typing import Any


def read_receipts(root: Path) -> list[dict[str, Any]]:
    """Return the receipts of all days and workers, the oldest file first."""
    files = sorted(root.glob("worker/receipts/*/*.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]
