"""Clients of other makers, each in a process of its own."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

# Seconds: a client's process takes two to seven on an idle machine.
CLIENT_S = 300


def require_installed(folder: Path) -> None:
    """Skip a test where a client is not installed."""
    if not (folder / "installed").is_file():
        pytest.skip(f"{folder} is missing: `make test-clients` installs it, Node's with npm")


def answers_of(
    command: Sequence[str | Path],
    environ: Mapping[str, str],
    folder: Path | None = None,
    program: str | None = None,
) -> dict[str, Any]:
    """Run a client; return the answers that it printed as JSON.

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
    answers: dict[str, Any] = json.loads(ran.stdout)
    return answers
