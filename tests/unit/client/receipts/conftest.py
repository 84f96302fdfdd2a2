"""Receipts as workers write them, and the command that sums them."""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from llm_worker_client.__main__ import read_command_line
from llm_worker_client.receipts import command

DAY = date(2026, 11, 27)
NEXT_DAY = date(2026, 11, 28)
FILE = "w1-0a1b2c3d.jsonl"

Run = Callable[..., tuple[int, str, str]]


def make_receipt(id: str = "job1", **changes: Any) -> dict[str, Any]:
    """Return a receipt without the keys whose values are ``...``."""
    receipt = {
        "id": id,
        "created": 1764250000.123,
        "route": "/v1/chat/completions",
        "model": "demo",
        "status": 200,
        "queue_ms": 3.1,
        "first_token_ms": 20.0,
        "total_ms": 100.0,
        "tokens": {"prompt": 12, "cached": 4, "completion": 24},
        "preemptions": 0,
        "gpu_seconds": 0.1,
        "cost_usd": 0.000028,
        "worker": {"id": "w1", "gpu": "NVIDIA H100 80GB HBM3", "vllm": "0.32.0"},
    }
    return {key: value for key, value in (receipt | changes).items() if value is not ...}


def write_receipts(
    volume: Path, *receipts: dict[str, Any], day: date = DAY, name: str = FILE
) -> Path:
    """Append receipts to a file of a volume, and return its path."""
    path = volume / "worker/receipts" / str(day) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(f"{json.dumps(one)}\n" for one in receipts)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command on ``DAY``; it returns status, stdout, stderr."""

    def call(*words: Any) -> tuple[int, str, str]:
        status = command.run(read_command_line(["receipts", *map(str, words)]), today=DAY)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call
