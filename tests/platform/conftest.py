"""Fixtures that start workers as in production, and clients of `make endpoint`."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager

import openai
import pytest
from support.processes.emulated_endpoint import EmulatedEndpoint, EndpointFactory, emulated_endpoint
from support.processes.http_worker import KEY, HttpWorker, http_worker
from support.processes.local_endpoint import LocalEndpoint
from support.volumes import used_before


@pytest.fixture(scope="session")
def started_endpoint(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> EndpointFactory:
    """Return a factory: ``async with started_endpoint(post_delay_s=..., SETTING="...")``."""

    def start(
        post_delay_s: float = 0, **settings: str
    ) -> AbstractAsyncContextManager[EmulatedEndpoint]:
        log = tmp_path_factory.mktemp("worker") / "log"
        return emulated_endpoint({**worker_environ, **settings}, log, post_delay_s)

    return start


@pytest.fixture(scope="session")
def server(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpWorker]:
    """Start `src/handler.py --serve`, once a run; test_serve.py, the last to use it, ends it."""
    folder = tmp_path_factory.mktemp("serve")
    environ = {"SERVE_API_KEY": KEY, "FILES_PATH": used_before(folder / "volume")}
    with http_worker({**worker_environ, **environ}, folder / "log") as running:
        yield running


@pytest.fixture
def served(server: HttpWorker) -> Iterator[openai.OpenAI]:
    """Return a client of `--serve`."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_served(server: HttpWorker) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{server.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def client(make_endpoint: LocalEndpoint) -> Iterator[openai.OpenAI]:
    url = make_endpoint.openai_url
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(make_endpoint: LocalEndpoint) -> AsyncIterator[openai.AsyncOpenAI]:
    url = make_endpoint.openai_url
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client
