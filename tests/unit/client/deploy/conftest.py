"""The command `deploy` against a platform on loopback."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from support.runpod_api.server import KEY, Runpod

from llm_worker_client.__main__ import read_command_line
from llm_worker_client.deploy import command as deploy
from llm_worker_client.deploy.api import Api

REQUIRED_FLAGS = ("--name", "chat", "--image", "me/llm-worker:1")
FLAGS = (*REQUIRED_FLAGS, "--gpu-pools", "ADA_24", "AMPERE_24")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pauses() -> list[float]:
    """Return the pauses in seconds, which are recorded instead of slept."""
    return []


@pytest.fixture
def api(runpod: Runpod, pauses: list[float]) -> Iterator[Api]:
    with closing(Api(KEY, f"{runpod.url}/v2", f"{runpod.url}/queue", pauses.append)) as opened:
        yield opened


def addresses(runpod: Runpod) -> tuple[str, ...]:
    return ("--api-url", f"{runpod.url}/v2", "--queue-url", f"{runpod.url}/queue")


@pytest.fixture
def run(runpod: Runpod, capsys: pytest.CaptureFixture[str], pauses: list[float]) -> Run:
    """Return a function that runs the command and returns its status, stdout and stderr."""

    def command(
        name: str, *words: Any, sleep: Callable[[float], None] = pauses.append
    ) -> tuple[int, str, str]:
        options = read_command_line(["deploy", name, *addresses(runpod), *map(str, words)])
        status = deploy.run_subcommand(options, sleep)
        printed = capsys.readouterr()
        assert KEY not in printed.out + printed.err
        return status, printed.out, printed.err

    return command
