"""Whole workers that start from the hub, and from a volume while the hub is down."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hub.downloads import (
    ANSWER,
    NAME,
    assert_ends,
    assert_prefetched,
    assert_refused,
    environ,
    found,
    hold,
    hub_with,
    sent_once,
)
from support.processes.background import background
from support.processes.commands import Ran, run
from support.processes.side_by_side import side_by_side

from worker.store import Found

OWN_CONFIG = """
from transformers import LlamaConfig
class OwnConfig(LlamaConfig):
    model_type = "own"
"""

# Silences vLLM and Python's warnings, so that only the worker's log is left.
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="module")
def source(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the demo model, with nothing in it that isn't loaded."""
    folder = tmp_path_factory.mktemp("source") / "files"
    return shutil.copytree(demo_model, folder, ignore=shutil.ignore_patterns("recipe.*"))


@pytest.fixture(scope="module")
def passes(
    source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], None]]:
    """Run the checks of this module, two at a time: a check takes a core for ten seconds."""

    def in_new_volume(check: Callable[[Path, Path], None]) -> Callable[[], None]:
        return lambda: check(source, tmp_path_factory.mktemp("volume"))

    with side_by_side({name: in_new_volume(check) for name, check in CHECKS.items()}) as result:
        yield result


def answer(environ: dict[str, str]) -> Ran:
    return run({**environ, **QUIET}, *ANSWER)


def assert_answers(ran: Ran) -> None:
    assert ran.returncode == 0, ran.stderr
    assert '"choices"' in ran.stdout


def starts_from_the_hub(source: Path, base: Path) -> None:
    with hub_with(source) as served:
        ran = answer(environ(served, base))
        assert_answers(ran)
        assert f"found: {NAME} downloaded" in ran.stderr
        assert sent_once(served, source)


def referring(source: Path, folder: Path) -> tuple[Path, Path]:
    """Copy a model so that it needs code of another repository; return both."""
    model = Path(shutil.copytree(source, folder / "model"))
    config = json.loads((model / "config.json").read_text())
    code = {"auto_map": {"AutoConfig": "org/code--own.OwnConfig"}, "model_type": "own"}
    (model / "config.json").write_text(json.dumps(config | code))
    (folder / "code").mkdir()
    (folder / "code" / "own.py").write_text(OWN_CONFIG)
    return model, folder / "code"


def starts_without_the_hub(source: Path, base: Path) -> None:
    model, code = referring(source, base)
    with hub_with(model) as served:
        served.add("org/code", code)
        assert_prefetched(served, model, base, TRUST_REMOTE_CODE="1")
        served.clear()
        served.status = 503
        # Without the cache on the new volume, vLLM finds its own, and need not look at the class.
        ran = answer(environ(served, base, TRUST_REMOTE_CODE="1", COMPILE_CACHE="0"))
        assert_answers(ran)
        assert f"found: {NAME} from the volume" in ran.stderr
        assert served.requests == []


def reports_a_missing_revision(source: Path, base: Path) -> None:
    with hub_with(source) as served:
        ran = answer(environ(served, base, MODEL_REVISION="v2"))
        assert_refused(ran, f"{NAME}@v2", "no such revision", "MODEL_REVISION")


def ends_on_a_signal(source: Path, base: Path) -> None:
    with (
        hub_with(source) as served,
        background(ANSWER, environ(served, base, **QUIET), base / "log") as worker,
    ):
        hold(served, source)
        assert_ends(worker, base)
        assert not isinstance(found(base), Found)


CHECKS: dict[str, Callable[[Path, Path], None]] = {
    "downloads every file once while it starts, and answers": starts_from_the_hub,
    "needs no hub on a filled volume, for code from elsewhere, either": starts_without_the_hub,
    "ends with a line on a revision that does not exist": reports_a_missing_revision,
    "leaves no process and no lease when it is terminated": ends_on_a_signal,
}


@pytest.mark.parametrize("does", CHECKS)
def test_a_whole_worker(passes: Callable[[str], None], does: str) -> None:
    passes(does)
