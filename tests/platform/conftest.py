"""Workers started as in production, each against an emulator of its own."""

from contextlib import AbstractAsyncContextManager

import pytest
from support.processes.endpoints import Endpoint, EndpointFactory, start_endpoint


@pytest.fixture(scope="session")
def started_endpoint(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> EndpointFactory:
    """A factory: ``async with started_endpoint(post_delay_s=..., SETTING="...") as endpoint``."""

    def start(post_delay_s: float = 0, **settings: str) -> AbstractAsyncContextManager[Endpoint]:
        log = tmp_path_factory.mktemp("worker") / "log"
        return start_endpoint({**worker_environ, **settings}, log, post_delay_s)

    return start
