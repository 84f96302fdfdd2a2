"""Runs third-party clients as their users start them, each in a separate process."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import ROOT


def client_folder(name: str) -> Path:
    """Return the environment of Python clients that ``nox -s clients`` makes."""
    return ROOT / ".nox" / f"client-{name}"


def npm_folder(name: str) -> Path:
    """Return the folder of clients from npm that ``nox -s clients`` makes."""
    return ROOT / ".nox" / "npm" / name


PYTHON_CLIENTS = client_folder("python")
# Variables of programs that import LiteLLM or LangChain.
ENVIRON = {
    "PATH": os.environ["PATH"],
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise LiteLLM downloads its price list on import
    "LITELLM_MODE": "PRODUCTION",  # otherwise LiteLLM reads a .env file
    # Otherwise LangChain downloads the vocabulary of OpenAI's models.
    "TIKTOKEN_CACHE_DIR": "".join(
        map(
            str,
            PYTHON_CLIENTS.glob("lib/python*/site-packages/litellm/litellm_core_utils/tokenizers"),
        )
    ),
}
# Seconds after which a hanging client is killed: it takes two to seven on an idle machine.
CLIENT_S = 300


def require_installed(folder: Path) -> None:
    """Skip the test if a client is not installed."""
    if not (folder / "installed").is_file():
        pytest.skip(f"{folder} is missing: `nox -s clients` installs it, Node's with npm")


def run_client(
    command: Sequence[str | Path],
    environ: Mapping[str, str],
    folder: Path | None = None,
    program: str | None = None,
) -> str:
    """Run a client, with the program as its standard input; return its output."""
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


def client_answers(*client: Any) -> dict[str, Any]:
    """Return the answers that a client printed as JSON; the arguments are those of `run_client`."""
    answers: dict[str, Any] = json.loads(run_client(*client))
    return answers
