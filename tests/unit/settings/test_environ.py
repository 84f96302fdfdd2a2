"""Environment variables that the worker sets, reads and removes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr
from support import ROOT

from worker.settings import Settings
from worker.settings.environment import (
    SECRET_VARIABLES,
    has_job_queue,
    has_realtime_port,
    hub_cache_directory,
)
from worker.settings.names import canonical_name


def export(environ: dict[str, str], **settings: str) -> dict[str, str]:
    os.environ.clear()
    os.environ.update(environ)
    Settings.from_env({"MODEL_NAME": "org/model", **settings}).export_library_variables()
    return dict(os.environ)


def test_export_sets_variables_of_libraries_unless_the_operator_set_them() -> None:
    assert export({"RUNPOD_LOG_LEVEL": "DEBUG"}) == {
        "RUNPOD_LOG_LEVEL": "DEBUG",
        "RUNPOD_SKIP_GPU_CHECK": "true",
        "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
    }


@pytest.mark.parametrize(
    ("environ", "settings", "name", "value"),
    [
        ({}, {"BASE_PATH": "/nowhere"}, "HF_HOME", "/nowhere/huggingface-cache"),
        ({"HF_HOME": "/mine"}, {"BASE_PATH": "/nowhere"}, "HF_HOME", "/mine"),
        ({}, {"HF_TOKEN": "hf_secret"}, "HF_TOKEN", "hf_secret"),
        ({"RUNPOD_LOG_LEVEL": " "}, {}, "RUNPOD_LOG_LEVEL", "INFO"),
    ],
)
def test_a_variable_is_exported(
    environ: dict[str, str], settings: dict[str, str], name: str, value: str
) -> None:
    assert export({**environ}, **settings)[name] == value


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HUB_CACHE": " ", "HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, Path.home() / ".cache" / "huggingface" / "hub"),
    ],
)
def test_the_hub_cache_is_the_one_that_its_library_uses(
    environ: dict[str, str], cache: str | Path
) -> None:
    assert hub_cache_directory(environ) == Path(cache)


@pytest.mark.parametrize("name", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"])
def test_the_path_of_the_hub_cache_may_contain_variables(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOMEWHERE", "/d")
    below = "huggingface/hub" if name == "XDG_CACHE_HOME" else ""
    assert hub_cache_directory({name: "$SOMEWHERE/${SOMEWHERE}/e"}) == Path("/d/d/e") / below


@pytest.mark.parametrize(
    ("environ", "queue", "port"),
    [
        ({}, False, False),
        ({"RUNPOD_REALTIME_PORT": "0"}, False, False),
        ({"RUNPOD_REALTIME_PORT": "8080"}, False, True),
        ({"RUNPOD_WEBHOOK_GET_JOB": "http://x?"}, True, False),
        # The SDK serves the port if both are set.
        ({"RUNPOD_WEBHOOK_GET_JOB": "http://x?", "RUNPOD_REALTIME_PORT": "8080"}, False, True),
    ],
)
def test_the_platform_is_detected_where_the_sdk_finds_jobs(
    environ: dict[str, str], queue: bool, port: bool
) -> None:
    os.environ.update(environ)
    assert (has_job_queue(), has_realtime_port()) == (queue, port)


# Secrets, which no child process has


PROGRAM = """
import json, os, subprocess, sys
from pathlib import Path
from worker.settings import environment as e

CHILD = "import pathlib, sys; sys.stdout.write(pathlib.Path('/proc/self/environ').read_text())"

COMMAND = [sys.executable, "-c", CHILD]

def look():
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, Path("/proc/self/environ").read_bytes())
        os._exit(0)
    os.wait()
    return {
        "own": Path("/proc/self/environ").read_text(),
        "forked": os.read(read, 100_000).decode(),
        "started": subprocess.run(COMMAND, capture_output=True).stdout.decode(),
        "python": os.getenv("RUNPOD_AI_API_KEY", ""),
    }

values = e.pop_secrets()
removed = look()
e.restore_sdk_key()
restored = look()
everything = dict(e.environ_with_secrets())
print(json.dumps({"values": values, "removed": removed, "restored": restored, "all": everything}))
"""

SECRETS = {name: f"canary-{name}-ü" for name in SECRET_VARIABLES}


def test_no_environment_contains_a_secret_but_the_worker_and_the_sdk_have_theirs() -> None:
    environ = {
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUTF8": "1",
        "FIRST": "1",
        **SECRETS,
        "LAST": "2",
    }
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True
    )
    found = json.loads(result.stdout)
    assert sorted(found["values"]) == sorted(SECRETS.values())
    for when in ("removed", "restored"):
        for process in ("own", "forked", "started"):
            variables = found[when][process]
            assert ("FIRST=1" in variables, "LAST=2" in variables, "canary" in variables) == (
                True,
                True,
                False,
            )
    assert SECRETS.items() <= found["all"].items()
    key = SECRETS["RUNPOD_AI_API_KEY"]
    assert (found["removed"]["python"], found["restored"]["python"]) == ("", key)


def test_every_secret_setting_is_removed_from_the_environment() -> None:
    fields = Settings.model_fields.items()
    secret = {name.upper() for name, field in fields if field.annotation == SecretStr | None}
    assert secret
    assert secret <= {canonical_name(name) for name in SECRET_VARIABLES}
    assert {"HF_TOKEN", "SERVE_API_KEY"} <= set(SECRET_VARIABLES)
