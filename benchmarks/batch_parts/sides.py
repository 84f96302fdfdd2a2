"""The sides: inputs for both, and how their processes are started and listened to."""

import json
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench

CHAT = "/v1/chat/completions"
SLOTS = 128
MAX_MODEL_LEN = 512
# What the worker sets on a CPU, for both; and no line a request.
ENVIRON = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
SIDES = ("worker", "run_batch")


@dataclass(frozen=True)
class Ran:
    """What a side says of a run: of its own process, without the engine's core.

    Args:
        seconds: without the engine's start.
        growth_mb: of the resident memory at most, over what it was before.
    """

    seconds: float
    growth_mb: float


# Run first on each side: a first request, and the first ones side by side, take seconds more.
WARMUP = 2 * SLOTS
WARM = "warm"


def write_input(path: Path, count: int, tokens: int, padding: int = 0, names: str = "line") -> Path:
    """Write an input of chats.

    Args:
        path: of the file.
        count: of its lines.
        tokens: of each answer.
        padding: bytes more in each line.
        names: what custom_ids begin with.
    """
    with path.open("w") as opened:
        for number, prompt in enumerate(bench.prompts(count)):
            body: dict[str, Any] = {
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            if padding:
                body["user"] = "x" * padding
            line = {"custom_id": f"{names}{number}", "method": "POST", "url": CHAT, "body": body}
            opened.write(json.dumps(line) + "\n")
    return path


@asynccontextmanager
async def started(side: str, model: str, source: Path, folder: Path) -> AsyncIterator[Process]:
    """Start a side's engine; it begins with the batch as soon as it has printed "begun".

    Args:
        side: one of ``SIDES``.
        model: a directory.
        source: the input.
        folder: the output's, which a later run goes on with.
    """
    program = Path(__file__).parent / f"{side}.py"
    command = (sys.executable, "-u", str(program), model, str(source), str(folder))
    async with bench.running(command, ENVIRON, quiet=True) as process:
        await bench.next_line(process, "begun")
        yield process


async def run(side: str, model: str, source: Path, folder: Path) -> Ran:
    """Run a batch to its end.

    Raises:
        Lost: the process ended too early, or a line has no answer.
    """
    async with started(side, model, source, folder) as process:
        _, seconds, growth = await bench.next_line(process, "ended")
    with source.open() as lines:
        wanted = sum(1 for _ in lines)
    if (kept := answers(folder)) != wanted:
        raise bench.Lost(f"{side}: {kept} of {wanted} lines have an answer")
    return Ran(float(seconds), float(growth))


def answers(folder: Path) -> int:
    """Count the good answers that stand in a folder of either side, whole lines only."""
    names: set[str] = set()
    for found in (*folder.rglob("*.jsonl"), *folder.rglob("content")):
        text = found.read_bytes()
        for line in text[: text.rfind(b"\n") + 1].splitlines():
            answer = json.loads(line)
            good = (answer.get("response") or {}).get("status_code") == 200
            if good and not answer["custom_id"].startswith(WARM):
                names.add(answer["custom_id"])
    return len(names)
