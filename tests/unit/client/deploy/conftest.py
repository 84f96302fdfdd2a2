"""The command `deploy` against a platform on loopback."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
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
def open_api(runpod: Runpod, pauses: list[float]) -> Iterator[Callable[..., Api]]:
    """Return a function that opens the API with a timeout in seconds."""
    with ExitStack() as stack:

        def create(timeout_s: float = 60.0) -> Api:
            api = Api(KEY, f"{runpod.url}/v2", f"{runpod.url}/queue", pauses.append, timeout_s)
            return stack.enter_context(closing(api))

        yield create


@pytest.fixture
def api(open_api: Callable[..., Api]) -> Api:
    return open_api()


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
