"""Clients of other makers, each in a process of its own."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

# Seconds; ends what hangs: a client's process takes two to seven on an idle machine.
CLIENT_S = 300


def require_installed(folder: Path) -> None:
    """Skip a test where a client is not installed."""
    if not (folder / "installed").is_file():
        pytest.skip(f"{folder} is missing: `make test-clients` installs it, Node's with npm")


def printed_by(
    command: Sequence[str | Path],
    environ: Mapping[str, str],
    folder: Path | None = None,
    program: str | None = None,
) -> str:
    """Run a client; return what it printed.

    Args:
        command: its interpreter, with arguments.
        environ: the whole environment.
        folder: the working directory.
        program: what it reads from stdin.
    """
    ran = subprocess.run(
        command,
        cwd=folder,
        env=dict(environ),
        input=program,
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def answers_of(*client: Any) -> dict[str, Any]:
    """Return the answers that a client printed as JSON; its arguments are those of `printed_by`."""
    answers: dict[str, Any] = json.loads(printed_by(*client))
    return answers
