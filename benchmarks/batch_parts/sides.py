"""The two sides: their inputs, their processes and their output."""

import json
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proof.measure import http_load, processes

CHAT = "/v1/chat/completions"
SLOTS = 128
MAX_MODEL_LEN = 512
# The worker's own values on a CPU, for both sides; ERROR avoids a log line per request.
ENVIRON = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
SIDES = ("worker", "run_batch")


@dataclass(frozen=True)
class RunResult:
    """The result that a side reports for a run, for its own process without the engine core.

    Args:
        seconds: Duration without the startup of the engine.
        growth_mb: Largest growth of the resident memory during the run.
    """

    seconds: float
    growth_mb: float


# Each side first runs a warm-up: a first request and the first concurrent requests take seconds
# longer.
WARM_UP_LINES = 2 * SLOTS
WARM_UP_NAME = "warm"


def write_input(path: Path, count: int, tokens: int, padding: int = 0, names: str = "line") -> Path:
    """Write an input file of chats.

    Args:
        path: Path of the file.
        count: Number of lines.
        tokens: Number of tokens of each answer.
        padding: Number of bytes to add to each line.
        names: Prefix of the custom_ids.
    """
    with path.open("w") as opened:
        for number, prompt in enumerate(http_load.prompts(count)):
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
async def start_side(side: str, model: str, source: Path, folder: Path) -> AsyncIterator[Process]:
    """Start a side's engine; it starts the batch as soon as it has printed "begun".

    Args:
        side: One of ``SIDES``.
        model: Directory of the model.
        source: The input file.
        folder: Folder of the output; another run in the same folder continues the batch.
    """
    program = Path(__file__).parent / f"{side}.py"
    command = (sys.executable, "-u", str(program), model, str(source), str(folder))
    async with processes.run_process(command, ENVIRON, quiet=True) as process:
        await processes.next_line(process, "begun")
        yield process


async def run(side: str, model: str, source: Path, folder: Path) -> RunResult:
    """Run a batch to its end.

    Raises:
        Lost: If the process exits too early, or a line has no answer.
    """
    async with start_side(side, model, source, folder) as process:
        _, seconds, growth = await processes.next_line(process, "ended")
    with source.open() as lines:
        expected = sum(1 for _ in lines)
    if (answered := answers(folder)) != expected:
        raise processes.Lost(f"{side}: {answered} of {expected} lines have an answer")
    return RunResult(float(seconds), float(growth))


def answers(folder: Path) -> int:
    """Return the number of complete successful answers in a folder of either side."""
    names: set[str] = set()
    for found in (*folder.rglob("*.jsonl"), *folder.rglob("content")):
        text = found.read_bytes()
        for line in text[: text.rfind(b"\n") + 1].splitlines():
            answer = json.loads(line)
            good = (answer.get("response") or {}).get("status_code") == 200
            if good and not answer["custom_id"].startswith(WARM_UP_NAME):
                names.add(answer["custom_id"])
    return len(names)
