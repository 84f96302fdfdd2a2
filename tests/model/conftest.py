"""One real engine, in this process, for all tests of this folder."""

import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.engine.requests import until_idle
from support.processes.offline_scripts import embed, generate, ids, scripts  # noqa: F401 - fixtures

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

# Returns all yields of a job; the keywords are its input.
Ask = Callable[..., Coroutine[Any, Any, list[Any]]]


@pytest.fixture(scope="session")
def settings(demo_model: Path) -> Settings:
    environ = {"MODEL_NAME": str(demo_model), "DEFAULT_BATCH_MAX_DELAY_MS": "0"}
    return Settings.from_env(environ)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engine puts what it compiles."""
    return tmp_path_factory.mktemp("compiled")


@contextmanager
def launched(settings: Settings, **options: str) -> "Iterator[InProcessEngine]":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # Imported here: it takes seconds, and tests of other folders do without it.
    from worker.engine.arguments import StartContext  # noqa: PLC0415 - likewise
    from worker.engine.options import Options  # noqa: PLC0415 - likewise
    from worker.engine.run.inprocess import InProcessEngine  # noqa: PLC0415 - likewise
    from worker.engine.start import Start, launch  # noqa: PLC0415 - likewise

    known = Options()
    values = {"MODEL": settings.model_name, "MAX_MODEL_LEN": "1024", **options}
    engine = known.parse(values).arguments
    with launch.launched(Start(settings, (engine,), StartContext(known.machine))) as engines:
        assert isinstance(engines.main, InProcessEngine)
        yield engines.main


@pytest.fixture(scope="session")
def demo_engine(settings: Settings, compiled: Path) -> "Iterator[InProcessEngine]":
    """The engine, started once: a cold start takes ten seconds."""
    its_own = pytest.MonkeyPatch()
    its_own.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    with launched(settings) as engine:
        # Its core has it; what other tests start has not.
        its_own.undo()
        yield engine


@pytest.fixture
def worker(demo_engine: "InProcessEngine", settings: Settings) -> Worker:
    return Worker(Engines(demo_engine), settings)


@pytest.fixture
def ask(worker: Worker) -> Ask:
    async def ask(**payload: Any) -> list[Any]:
        return [chunk async for chunk in worker.handle({"id": "job-1", "input": payload})]

    return ask


@pytest.fixture(autouse=True)
async def no_slot_left_behind(request: pytest.FixtureRequest) -> AsyncGenerator[None, None]:
    """Every test of the engine leaves it idle, by the engine's own count."""
    yield
    for name in {"demo_engine", "lora_engine"} & {*request.fixturenames}:
        await until_idle(request.getfixturevalue(name))
