"""A platform on loopback, and the command run against it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.runpod_api.server import KEY, Platform, platform

from llm_worker_client.command_line import read_command_line
from llm_worker_client.deploy import command as deploy
from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.calls import Addresses, Calls

FLAGS = ("--name", "chat", "--image", "me/llm-worker:1", "--gpu-pools", "ADA_24", "AMPERE_24")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Platform]:
    """Run a platform whose account's key is in the environment."""
    os.environ["RUNPOD_API_KEY"] = KEY
    os.environ["HOME"] = str(tmp_path)
    with platform() as running:
        yield running


@pytest.fixture
def pauses() -> list[float]:
    """Return the seconds that were slept, which tests do not wait."""
    return []


@pytest.fixture
def api(there: Platform, pauses: list[float]) -> Iterator[Api]:
    opened = Calls(KEY, pauses.append, httpx.Timeout(5.0))
    yield Api(opened, addresses(there))
    opened.close()


@pytest.fixture
def run(there: Platform, capsys: pytest.CaptureFixture[str], pauses: list[float]) -> Run:
    """Run the command; return its status, and what it printed as result and beside it."""

    def command(
        name: str, *words: Any, sleep: Callable[[float], None] = pauses.append
    ) -> tuple[int, str, str]:
        places = ("--api-url", f"{there.url}/v2", "--queue-url", f"{there.url}/queue")
        options = read_command_line(["deploy", name, *places, *map(str, words)])
        status = deploy.run(options, sleep)
        printed = capsys.readouterr()
        assert KEY not in printed.out + printed.err
        return status, printed.out, printed.err

    return command


def addresses(there: Platform) -> Addresses:
    return Addresses(f"{there.url}/v2", f"{there.url}/queue")
