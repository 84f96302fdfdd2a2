"""Fixtures and marks for all test folders, and the order in which the folders run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from support import ROOT
from support.parallel import ForkedRun
from support.processes.commands import HOME
from support.processes.servers import READY, LocalEndpoint, local_endpoint
from support.volume import make_used_volume

# Examples and their generation may take long on a busy machine.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any machine")

# A background job of a shell ignores SIGINT, and so would all commands that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

DEPTHS = ("unit", "contract", "settings", "model", "platform", "clients", "image", "browser")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run the tests in concurrent forks, so many of each kind that shares no engine"
    parser.addoption("--workers", type=int, default=0, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    if workers := config.option.workers:
        config.pluginmanager.register(ForkedRun(workers))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder, and run the cheap folders first."""

    def depth(item: pytest.Item) -> int:
        return DEPTHS.index(item.path.relative_to(ROOT / "tests").parts[0])

    for item in items:
        item.add_marker(DEPTHS[depth(item)])
    items.sort(key=depth)


@pytest.fixture(autouse=True)
def _restore_environ() -> Iterator[None]:
    """Restore the environment after each test, because a worker's startup writes to it."""
    # Bytes, because decoding all variables for each test takes ten seconds of a run.
    before = dict(os.environb)
    yield
    if dict(os.environb) != before:
        os.environb.clear()
        os.environb.update(before)


@pytest.fixture(autouse=True)
def _clear_rotary_embeddings() -> Iterator[None]:
    """Clear vLLM's cache of rotary embeddings, which the doctor's models fill without real weights.

    The cores of later tests' engines are forked from this process and would use the cached objects.
    """
    yield
    if module := sys.modules.get("vllm.model_executor.layers.rotary_embedding"):
        module._ROPE_DICT.clear()


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Return the demo model's directory; create the model if it is missing."""
    directory = ROOT / ".models" / "demo"
    subprocess.run([sys.executable, ROOT / "builder" / "demo_model.py", directory], check=True)
    return directory


@pytest.fixture(scope="session")
def worker_environ(demo_model: Path) -> dict[str, str]:
    """Return the smallest environment for a worker with the demo model."""
    return {**HOME, "MODEL_NAME": str(demo_model)}


@pytest.fixture(scope="session")
def full_settings() -> dict[str, str]:
    """Return settings that enable all features that a client can use."""
    # The tests of the client's wheel run without the package of this model.
    from support.models.minilm import MODEL  # noqa: PLC0415 - see above

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
    full_settings: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalEndpoint]:
    """Start `make endpoint` with the demo model and MiniLM once per session."""
    folder = tmp_path_factory.mktemp("endpoint")
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={folder}"]
    volume = make_used_volume(folder / "volume")
    # The volume also contains adapters and receipts.
    environ = {**worker_environ, **full_settings, "FILES_PATH": volume, "BASE_PATH": volume}
    environ["RECEIPTS"] = "1"
    with local_endpoint(command, environ, folder / "output") as endpoint:
        endpoint.wait_for_output(READY)
        yield endpoint
