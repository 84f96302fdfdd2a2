"""Common parts of the benchmarks: paths, options, processes, and a line about the machine.

Importing this module makes `src` importable.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEMO_MODEL = ROOT / ".models" / "demo"
sys.path.insert(0, str(ROOT / "src"))


class Lost(Exception):
    """A job or a chunk was lost, or a process exited too early."""


def options(
    description: str | None, rounds: int = 3, *, writes_json: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the common options, with `--json` only if `writes_json` is set."""
    parser = argparse.ArgumentParser(description=description)
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


def prompts(count: int) -> list[str]:
    """Return prompts of eight words, always the same ones."""
    rng = random.Random(7)
    words = "a small worker counts tokens".split()
    return [" ".join(rng.choices(words, k=8)) for _ in range(count)]


@asynccontextmanager
async def run_process(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    quiet: bool = False,
    merged: bool = False,
    stdout: int = PIPE,
    stdin: int | None = None,
) -> AsyncIterator[Process]:
    """Run a command in the repository's root with additional variables; kill it at the end.

    Its standard output is a pipe unless DEVNULL is passed; its standard input is a pipe only if
    PIPE is
    passed. `quiet` discards its standard error, `merged` sends it to its standard output.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, **environ},
        stdin=stdin,
        stdout=stdout,
        stderr=STDOUT if merged else DEVNULL if quiet else None,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # Kill the whole session: engines and the SDK's ping process survive the kill of their
        # parent.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def next_line(process: Process, prefix: str) -> list[str]:
    """Return the words of the next line of the output that begins with the prefix.

    Raises:
        Lost: If the process exits first.
    """
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(prefix.encode()):
            return line.decode().split()
    raise Lost("the process ended too early")


def print_line(*words: object) -> None:
    """Print words as one line of a child's output.

    A single write ensures that other output of the process can't split the line.
    """
    os.write(1, f"\n{' '.join(map(str, words))}\n".encode())
