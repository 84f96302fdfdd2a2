"""Tests of workers that start from the hub, and from a volume while the hub is down."""

import json
import shutil
from pathlib import Path

import pytest
from support.hub.downloads import (
    ANSWER,
    NAME,
    assert_prefetched,
    hub_with,
    was_sent_once,
    worker_environ,
)
from support.hub.server import Hub
from support.processes.commands import CompletedCommand, run_command

OWN_CONFIG = """
from transformers import LlamaConfig
class OwnConfig(LlamaConfig):
    model_type = "own"
"""
# Silences vLLM and Python's warnings, so that only the worker's log remains.
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="module")
def model_repository(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a repository of the demo model that contains only files that a worker loads."""
    folder = tmp_path_factory.mktemp("source") / "files"
    return shutil.copytree(demo_model, folder, ignore=shutil.ignore_patterns("recipe.*"))


def run_job(hub: Hub, volume: Path, **settings: str) -> CompletedCommand:
    ran = run_command(worker_environ(hub, volume, **settings, **QUIET), *ANSWER)
    assert ran.returncode == 0, ran.stderr
    assert '"choices"' in ran.stdout
    return ran


def test_a_worker_downloads_every_file_once_while_it_starts_and_answers(
    hub: Hub, model_repository: Path, volume: Path
) -> None:
    ran = run_job(hub, volume)
    assert f"found: {NAME} downloaded" in ran.stderr
    assert was_sent_once(hub, model_repository)


# This test imports vLLM, like the first one.
@pytest.mark.slow
def test_a_filled_volume_needs_no_hub_even_with_code_from_another_repository(
    model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    model, code = tmp_path / "model", tmp_path / "code"
    shutil.copytree(model_repository, model)
    config = json.loads((model / "config.json").read_text())
    own = {"auto_map": {"AutoConfig": "org/code--own.OwnConfig"}, "model_type": "own"}
    (model / "config.json").write_text(json.dumps(config | own))
    code.mkdir()
    (code / "own.py").write_text(OWN_CONFIG)
    with hub_with(model) as hub:
        hub.add("org/code", code)
        assert_prefetched(hub, model, volume, TRUST_REMOTE_CODE="1")
        hub.clear()
        hub.status = 503
        # Without the compile cache on the new volume, vLLM finds its own and skips the model's
        # class.
        ran = run_job(hub, volume, TRUST_REMOTE_CODE="1", COMPILE_CACHE="0")
        assert f"found: {NAME} from the volume" in ran.stderr
        assert hub.requests == []
