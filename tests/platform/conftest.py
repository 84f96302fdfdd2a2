"""Fixtures that start workers as in production, and official clients for them."""

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from support.processes.background import start_command
from support.processes.commands import SCRIPT
from support.processes.servers import KEY, LocalEndpoint, ServerProcess, client_proxy
from support.volume import make_used_volume


@pytest.fixture(scope="session")
def server(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Start `src/handler.py --serve` once per session; test_serve.py stops it as the last user."""
    folder = tmp_path_factory.mktemp("serve")
    environ = {**worker_environ, "SERVE_API_KEY": KEY}
    environ["FILES_PATH"] = make_used_volume(folder / "volume")
    with start_command([SCRIPT, "--serve", "--port", "0"], environ, folder / "log") as running:
        running.wait_for_output("Uvicorn running on ")
        yield ServerProcess(running.process, running.log)


@pytest.fixture
def serve_client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """Return an official client of `--serve`."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_serve_client(server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{server.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def proxy(
    make_endpoint: LocalEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Start the client's proxy in front of `make endpoint`; its callers use ``KEY``."""
    log = tmp_path_factory.mktemp("proxy") / "log"
    with client_proxy(make_endpoint.api_url, log, PROXY_API_KEY=KEY) as running:
        yield running


@pytest.fixture
def openai_client(make_endpoint: LocalEndpoint) -> Iterator[openai.OpenAI]:
    """Return an official client of `make endpoint`."""
    url = make_endpoint.openai_url
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_openai_client(make_endpoint: LocalEndpoint) -> AsyncIterator[openai.AsyncOpenAI]:
    url = make_endpoint.openai_url
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client
