"""Stand-ins for the platform: emulated endpoints, its REST API, and a volume with its S3 API.

The workers of an emulated endpoint are the fixture `answer` of each module or folder.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes.background import HUNG_S
from support.processes.s3_server import VOLUME_ID, S3Server, s3_server
from support.runpod_api.server import KEY, Runpod, runpod_api
from support.scripted_endpoint import (
    ACCOUNT,
    WITH_KEY,
    OutputsFunction,
    make_handler,
    scripted_endpoint,
)

import llm_worker_client
from emulator import Emulator
from llm_worker_client import proxy
from llm_worker_client.volume import Volume

PART = 2**19
# The folder from which processes import the client: src/, or that of the installed wheel.
CLIENT = Path(llm_worker_client.__file__).parents[1]


@dataclass(frozen=True)
class Mount:
    """A volume: its S3 API, and its directory as mounted in a worker."""

    server: S3Server
    directory: Path

    def open(self, **options: Any) -> Volume:
        keys = {"access_key": self.server.access_key, "secret": self.server.secret_key}
        defaults = {"id": VOLUME_ID, "url": self.server.url, "part_size": PART, **keys}
        return Volume(**{**defaults, **options})

    def read(self, key: str) -> bytes:
        return (self.directory / key).read_bytes()


@pytest.fixture
async def emulator(answer: OutputsFunction) -> AsyncIterator[Emulator]:
    async with scripted_endpoint(make_handler(answer), WITH_KEY) as running:
        yield running


@pytest.fixture
def endpoint_args(emulator: Emulator) -> dict[str, Any]:
    """Return the arguments that name the endpoint to a transport or to `configure`."""
    return {"endpoint_id": "local", "api_key": ACCOUNT, "base_url": emulator.api_url}


@pytest.fixture
def let_time_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that advances the clock of callers that wait for a job by ``HUNG_S``."""
    passed_s = 0.0

    def call() -> None:
        nonlocal passed_s
        passed_s += HUNG_S

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr("llm_worker_client.jobs.time", clock)
    return call


@pytest.fixture
def runpod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runpod]:
    """Run a platform whose account's key is in the environment."""
    monkeypatch.setenv("RUNPOD_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tmp_path))
    with runpod_api() as running:
        yield running


@pytest.fixture(scope="session")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    folder = tmp_path_factory.mktemp("volume")
    with s3_server(folder, folder.with_name("s3-log")) as server:
        yield Mount(server, folder)


@pytest.fixture
def _set_volume_environ(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables of the volume."""
    for name, value in mount.server.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def idle_checks(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Collect the idle checks of connections instead of scheduling them; the last one is due."""
    checks = list[Callable[[], None]]()

    def schedule_check(self: proxy.ProxyConnection) -> None:
        checks.append(partial(self._close_if_idle, self._due()))

    monkeypatch.setattr(proxy.ProxyConnection, "_schedule_idle_check", schedule_check)
    return checks
