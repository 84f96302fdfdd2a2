"""Measures the time and the memory for the check of 100,000 rows.

    PYTHONPATH=src .venv/bin/python benchmarks/in_process/check_rows.py [ROWS]

The rows are prompts in CSV and conversations in JSONL; the model is the demo model.
"""

import csv
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trainer.tokens import check_and_tokenize_in_process
from worker.fine_tunes.spec import RowsFile, Spec

ROOT = Path(__file__).parents[2]
MODEL = ROOT / ".models" / "demo"
ROWS = 100_000
WORDS = (ROOT / "README.md").read_text().split()


def _text(words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


def _csv(path: Path, rows: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["prompt", "response"])
        writer.writerows([_text(25), _text(15)] for _ in range(rows))


def _jsonl(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as opened:
        for _ in range(rows):
            roles = (("system", 8), ("user", 20), ("assistant", 12))
            messages = [{"role": role, "content": _text(words)} for role, words in roles]
            opened.write(json.dumps({"messages": messages}) + "\n")


def _measure(name: str, write: Callable[[Path, int], None], rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path, rows)
        spec = Spec(model=MODEL, tokenizer=MODEL, max_length=2048, training=RowsFile(path=path))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.monotonic()
        checked = check_and_tokenize_in_process(spec, Path(folder) / "tokens")
        seconds = time.monotonic() - start
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime
        row_count = checked.rows + checked.validation_rows
        print(
            f"{name}: {row_count:,} rows, {path.stat().st_size / 1e6:.0f} MB,"
            f" {checked.tokens:,} tokens to train on: {seconds:.1f} s ({cpu:.1f} s of CPU), at most"
            f" {usage.ru_maxrss / 1024:.0f} MB; load {os.getloadavg()[0]:.1f}"
        )


def main() -> None:
    """Measure both formats; the printed memory is the maximum so far."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    random.seed(1)
    _measure("prompts.csv", _csv, rows)
    _measure("chats.jsonl", _jsonl, rows)


if __name__ == "__main__":
    main()
