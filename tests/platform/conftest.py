"""Workers started as in production, each against an emulator of its own."""

from contextlib import AbstractAsyncContextManager

import pytest
from support.processes.emulated_endpoint import EmulatedEndpoint, EndpointFactory, emulated_endpoint


@pytest.fixture(scope="session")
def started_endpoint(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> EndpointFactory:
    """A factory: ``async with started_endpoint(post_delay_s=..., SETTING="...") as endpoint``."""

    def start(
        post_delay_s: float = 0, **settings: str
    ) -> AbstractAsyncContextManager[EmulatedEndpoint]:
        log = tmp_path_factory.mktemp("worker") / "log"
        return emulated_endpoint({**worker_environ, **settings}, log, post_delay_s)

    return start
