"""Secrets leave the environment: no child has them, however it is made."""

import json
import subprocess
import sys

from pydantic import SecretStr
from support import ROOT

from worker.settings import Settings
from worker.settings.environment import SECRETS
from worker.settings.names import canonical

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
