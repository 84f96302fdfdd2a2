"""Fixtures with one real engine in this process for all tests of this folder."""

import os
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.engine.requests import wait_until_idle
from support.models.lora import MAX_RANK, make_adapter

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

# Programs that have engines of their own.
SCRIPTS = Path(__file__).parent / "scripts"
# More slots than the tests need adapters at a time: on a CPU, vLLM would confuse the adapters.
LORA_SLOTS = 16

# Writes an adapter to the volume, or replaces it.
WriteAdapter = Callable[..., Path]
# Returns all chunks of a job; the keyword arguments are its input.
Ask = Callable[..., Coroutine[Any, Any, list[Any]]]


@pytest.fixture(scope="session")
def settings(demo_model: Path) -> Settings:
    environ = {"MODEL_NAME": str(demo_model), "DEFAULT_BATCH_MAX_DELAY_MS": "0"}
    return Settings.from_env(environ)


@pytest.fixture(scope="session")
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory for code that the engine compiles."""
    return tmp_path_factory.mktemp("compiled")


@contextmanager
def launch_engine(settings: Settings, **options: str) -> "Iterator[InProcessEngine]":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # These imports take seconds, and tests of other folders do not need them.
    from worker.engine.options import Options  # noqa: PLC0415 - see above
    from worker.engine.run.inprocess import InProcessEngine  # noqa: PLC0415 - see above
    from worker.engine.start import Start, launch  # noqa: PLC0415 - see above

    all_options = Options()
    values = {"MODEL": settings.model_name, "MAX_MODEL_LEN": "1024", **options}
    engine = all_options.parse_engine_settings(values).arguments
    with launch.launch_engines(
        Start(settings, engines=[engine], machine=all_options.machine)
    ) as engines:
        assert isinstance(engines.main_engine, InProcessEngine)
        yield engines.main_engine


@pytest.fixture(scope="session")
def demo_engine(settings: Settings, inductor_cache: Path) -> "Iterator[InProcessEngine]":
    """Start the engine once per session, because a cold start takes ten seconds."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor_cache))
    with launch_engine(settings) as engine:
        # The core has the variable now; other engines of the tests must not have it.
        patch.undo()
        yield engine


@pytest.fixture(scope="session")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the volume of the engine that serves adapters."""
    return tmp_path_factory.mktemp("volume")


@pytest.fixture(scope="session")
def lora_engine(settings: Settings, volume: Path) -> "Iterator[InProcessEngine]":
    """Start an engine that serves adapters, once per session."""
    options = {"ENABLE_LORA": "1", "MAX_LORA_RANK": str(MAX_RANK), "MAX_LORAS": str(LORA_SLOTS)}
    with launch_engine(settings.model_copy(update={"base_path": volume}), **options) as engine:
        yield engine


@pytest.fixture
def write_adapter(volume: Path, demo_model: Path) -> WriteAdapter:
    def write_adapter(name: str, seed: int = 1) -> Path:
        folder = volume / "adapters" / name
        shutil.rmtree(folder, ignore_errors=True)
        make_adapter(folder, demo_model, seed)
        return folder

    return write_adapter


@pytest.fixture
def worker(demo_engine: "InProcessEngine", settings: Settings) -> Worker:
    return Worker(Engines(demo_engine), settings)


@pytest.fixture
def ask(worker: Worker) -> Ask:
    async def ask(**payload: Any) -> list[Any]:
        return [chunk async for chunk in worker.handle({"id": "job-1", "input": payload})]

    return ask


@pytest.fixture(autouse=True)
async def _check_that_engine_is_idle(request: pytest.FixtureRequest) -> AsyncGenerator[None, None]:
    """Check that each test of the engine leaves no unfinished request."""
    yield
    for name in {"demo_engine", "lora_engine"} & {*request.fixturenames}:
        await wait_until_idle(request.getfixturevalue(name))
