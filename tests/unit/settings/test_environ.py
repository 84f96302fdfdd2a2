"""What the worker writes into the environment, reads from it, and takes out of it."""

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
    SECRETS,
    hub_cache,
    is_set,
    port_around,
    queue_around,
)
from worker.settings.names import canonical


def exported(environ: dict[str, str], **settings: str) -> dict[str, str]:
    os.environ.clear()
    os.environ.update(environ)
    Settings.from_env({"MODEL_NAME": "org/model", **settings}).export()
    return dict(os.environ)


def test_export_sets_what_libraries_read_and_keeps_what_the_operator_set() -> None:
    assert exported({"RUNPOD_LOG_LEVEL": "DEBUG"}) == {
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
    assert exported({**environ}, **settings)[name] == value


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
def test_the_hubs_cache_is_its_librarys(environ: dict[str, str], cache: str | Path) -> None:
    assert hub_cache(environ) == Path(cache)


@pytest.mark.parametrize("name", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"])
def test_the_hubs_cache_may_name_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEWHERE", "/d")
    below = "huggingface/hub" if name == "XDG_CACHE_HOME" else ""
    assert hub_cache({name: "$SOMEWHERE/${SOMEWHERE}/e"}) == Path("/d/d/e") / below


@pytest.mark.parametrize(
    ("environ", "queue", "port"),
    [
        ({}, False, False),
        ({"RUNPOD_REALTIME_PORT": "0"}, False, False),
        ({"RUNPOD_REALTIME_PORT": "8080"}, False, True),
        ({"RUNPOD_WEBHOOK_GET_JOB": "http://x?"}, True, False),
        # The SDK serves the port then.
        ({"RUNPOD_WEBHOOK_GET_JOB": "http://x?", "RUNPOD_REALTIME_PORT": "8080"}, False, True),
    ],
)
def test_a_platform_is_where_the_sdk_finds_jobs(
    environ: dict[str, str], queue: bool, port: bool
) -> None:
    os.environ.update(environ)
    assert (queue_around(), port_around()) == (queue, port)


@pytest.mark.parametrize(
    ("environ", "set_"), [({"A": "0"}, True), ({}, False), ({"A": ""}, False), ({"A": " "}, False)]
)
def test_a_variable_is_set_if_it_holds_anything(environ: dict[str, str], set_: bool) -> None:
    os.environ.update(environ)
    assert is_set("A") is set_


# Secrets: no child has them, however it is made


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

values = e.take_secrets()
taken = look()
e.give_sdk_its_key()
given = look()
everything = dict(e.given_environ())
print(json.dumps({"values": values, "taken": taken, "given": given, "all": everything}))
"""

GIVEN = {name: f"canary-{name}-ü" for name in SECRETS}


def test_no_process_has_a_secret_in_its_environment_and_the_worker_and_the_sdk_have_theirs() -> (
    None
):
    environ = {
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUTF8": "1",
        "FIRST": "1",
        **GIVEN,
        "LAST": "2",
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout)
    assert sorted(found["values"]) == sorted(GIVEN.values())
    for when in ("taken", "given"):
        for process in ("own", "forked", "started"):
            seen = found[when][process]
            assert ("FIRST=1" in seen, "LAST=2" in seen, "canary" in seen) == (True, True, False)
    assert GIVEN.items() <= found["all"].items()
    key = GIVEN["RUNPOD_AI_API_KEY"]
    assert (found["taken"]["python"], found["given"]["python"]) == ("", key)


def test_every_secret_among_the_settings_is_taken() -> None:
    fields = Settings.model_fields.items()
    secret = {name.upper() for name, field in fields if field.annotation == SecretStr | None}
    assert secret
    assert secret <= {canonical(name) for name in SECRETS}
    assert {"HF_TOKEN", "SERVE_API_KEY"} <= set(SECRETS)
