"""The endpoint for the tests with third-party clients, and a worker for LLM Engine's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.models.lora import make_adapter
from support.processes.clients import require_installed
from support.processes.llm_engine import (
    CLASSES,
    CLIENT,
    SERVE,
    SERVING,
    WAYS,
    Host,
    reached,
    served,
)
from support.processes.local_endpoint import LocalEndpoint

NAMES = "demo,tiny/demo"


@pytest.fixture(scope="session")
def lora(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return settings for adapters, with one of the settings'."""
    listed = tmp_path_factory.mktemp("adapters") / "listed"
    make_adapter(listed, demo_model, seed=2)
    return {**SERVING, "LORA_MODULES": f"listed={listed}"}


@pytest.fixture(scope="session")
def full_featured(full_featured: dict[str, str], lora: dict[str, str]) -> dict[str, str]:
    """Add adapters, and strict tool calls: clients extract data by a tool's schema."""
    return {**full_featured, **lora, "TOOL_STRICT_LEVEL": "parameter"}


@pytest.fixture(scope="session")
def llm_engine_worker(
    worker_environ: dict[str, str], lora: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """Start a worker of two names and an adapter of its settings, once a run."""
    require_installed(CLIENT)
    folder = tmp_path_factory.mktemp("llm-engine")
    with served(worker_environ, folder, **lora, SERVED_MODEL_NAME=NAMES) as running:
        yield running


@pytest.fixture(scope="session", params=WAYS)
def scripts_host(
    request: pytest.FixtureRequest,
    worker_environ: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    """Return a worker as scripts reach it, each way."""
    way: str = request.param
    if way == SERVE:
        yield request.getfixturevalue("llm_engine_worker")
        return
    if way != CLASSES:
        require_installed(CLIENT)
    endpoint: LocalEndpoint = request.getfixturevalue("make_endpoint")
    volume = endpoint.log.parent / "volume"
    model, folder = Path(worker_environ["MODEL_NAME"]), tmp_path_factory.mktemp("way")
    with reached(way, endpoint, volume, model, folder) as found:
        yield found
