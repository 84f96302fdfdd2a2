"""Fixtures of all folders, a mark for each folder, and the order in which folders run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from support import ROOT
from support.models.minilm import MODEL
from support.processes.commands import HOME
from support.processes.local_endpoint import READY, LocalEndpoint, local_endpoint
from support.volume.used import used_before

# On a busy machine an example may take long, and so may its making.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any machine")

# A shell's background job ignores it, and so would all commands that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

DEPTHS = ("unit", "contract", "settings", "model", "platform", "clients", "image")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder, and run the cheap folders first."""

    def depth(item: pytest.Item) -> int:
        return DEPTHS.index(item.path.relative_to(ROOT / "tests").parts[0])

    for item in items:
        item.add_marker(DEPTHS[depth(item)])
    items.sort(key=depth)


@pytest.fixture(autouse=True)
def _environ() -> Iterator[None]:
    """Restore the environment after each test: a start writes to it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _rotary_embeddings() -> Iterator[None]:
    """Forget what vLLM keeps of models that the doctor built without memory behind their weights.

    The cores of later tests' engines are forked from this process, and would use it.
    """
    yield
    if module := sys.modules.get("vllm.model_executor.layers.rotary_embedding"):
        module._ROPE_DICT.clear()


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Return the demo model's directory; make it if it is missing."""
    directory = ROOT / ".models" / "demo"
    subprocess.run([sys.executable, ROOT / "builder" / "demo_model.py", directory], check=True)
    return directory


@pytest.fixture(scope="session")
def worker_environ(demo_model: Path) -> dict[str, str]:
    """Return the smallest environment that a worker on the demo model can be started with."""
    return {**HOME, "MODEL_NAME": str(demo_model)}


@pytest.fixture(scope="session")
def full_featured() -> dict[str, str]:
    """Return settings that turn on everything a client can ask for."""
    return {
        "SERVED_MODEL_NAME": "demo,tiny/demo",
        "ENABLE_AUTO_TOOL_CHOICE": "1",
        "TOOL_CALL_PARSER": "demo_tools",
        "TOOL_PARSER_PLUGIN": str(ROOT / "tests" / "plugins" / "tool_parser.py"),
        "EMBEDDING_MODEL_NAME": str(MODEL),
        "EMBEDDING_SERVED_MODEL_NAME": "minilm",
    }


@pytest.fixture(scope="session")
def make_endpoint(
    worker_environ: dict[str, str],
    full_featured: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalEndpoint]:
    """Start `make endpoint` on the demo model and MiniLM, once a run."""
    folder = tmp_path_factory.mktemp("endpoint")
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={folder}"]
    volume = used_before(folder / "volume")
    # The adapters are on it, too.
    environ = {**worker_environ, **full_featured, "FILES_PATH": volume, "BASE_PATH": volume}
    with local_endpoint(command, environ, folder / "output") as endpoint:
        endpoint.wait_for_output(READY)
        yield endpoint
