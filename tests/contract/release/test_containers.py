"""Tests that the files for containers name existing files, targets, options and ports."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from support import ROOT
from support.processes.servers import ServerProcess, start_server

from emulator.__main__ import read_command_line as read_emulator_options
from llm_worker_client.__main__ import read_command_line as read_client_options

pytestmark = pytest.mark.contract

SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
MAKEFILE = (ROOT / "Makefile").read_text()


def read_command(service: dict[str, Any]) -> list[str]:
    """Return a service's command as its container gets it: compose replaces single dollars."""
    assert not re.search(r"(?<!\$)\$(?!\$)", str(service["command"]))
    return [word.replace("$$", "$") for word in service["command"]]


def test_compose_mounts_existing_files_without_write_access() -> None:
    for service in SERVICES.values():
        state, *mounts = service["volumes"]
        assert state == f"state:{service['working_dir']}"
        for source, target, access in (mount.split(":") for mount in mounts):
            assert (ROOT / source).exists()
            assert (target, access) == (f"{service['working_dir']}/{source[2:]}", "ro")


def test_compose_starts_make_endpoint_and_a_proxy_that_reaches_it() -> None:
    make, target, *variables = shlex.split(SERVICES["endpoint"]["command"])
    assert (make, target) == ("make", "endpoint")
    values = dict(variable.split("=", 1) for variable in variables)
    assert all(re.search(rf"^{name} \?=", MAKEFILE, re.MULTILINE) for name in values)
    assert read_emulator_options(shlex.split(values["OPTIONS"])).host == "0.0.0.0"
    *_, script = read_command(SERVICES["proxy"])
    command = shlex.split(script.partition("exec ")[2].replace("\\\n", ""))
    assert command[:3] == [".venv/bin/python", "-m", "llm_worker_client"]
    proxy = read_client_options(command[3:])
    assert proxy.base_url == f"http://endpoint:{values['PORT']}/v2"
    ports = {"endpoint": values["PORT"], "proxy": str(proxy.port)}
    assert {name: service["ports"] for name, service in SERVICES.items()} == {
        name: [f"127.0.0.1:{port}:{port}"] for name, port in ports.items()
    }


def test_compose_publishes_no_key() -> None:
    """The proxy has the operator's key or makes one; the endpoint needs only the operator's."""
    environ = SERVICES["proxy"]["environment"]
    assert environ["PROXY_API_KEY"] == "${EMULATOR_API_KEY:-}"
    assert "EMULATOR_API_KEY" not in SERVICES["endpoint"].get("environment", {})


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a directory in place of compose's volume, after the endpoint's first start."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@contextmanager
def start_proxy(volume: Path, key: str = "") -> Iterator[ServerProcess]:
    *shell, script = read_command(SERVICES["proxy"])
    command = [*shell, f"cd {volume}; {script.replace('--port 8001', '--port 0')}"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    environ |= {"RUNPOD_API_KEY": "any", "PROXY_API_KEY": key}
    with start_server(command, environ, volume / "log") as server:
        yield server


def request_health(server: ServerProcess, key: str) -> int:
    """Return the status of a request that needs the key, and a platform, which doesn't run here."""
    headers = {"Host": "compose.example.com", "x-api-key": key}
    return httpx2.get(f"{server.url}/v2/local/health", headers=headers).status_code


def test_compose_makes_a_random_key_for_the_proxy_once_and_prints_it(volume: Path) -> None:
    keys = list[str]()
    for _ in range(2):
        with start_proxy(volume) as server:
            (key,) = re.findall(r"The key for \S+: (\S+)$", server.output, re.MULTILINE)
            statuses = [request_health(server, one) for one in (key, "local", "", key[:-1])]
        assert statuses == [502, 401, 401, 401]
        keys.append(key)
    assert keys[0] == keys[1]
    assert len(keys[0]) == 32
    assert keys[0] not in str(SERVICES["proxy"])


def test_compose_uses_the_operators_key_and_does_not_print_it(volume: Path) -> None:
    with start_proxy(volume, "sk-mine") as server:
        assert [request_health(server, key) for key in ("sk-mine", "local")] == [502, 401]
        assert "sk-mine" not in server.output
    assert not (volume / ".proxy-key").exists()


def test_the_development_container_installs_and_starts_the_endpoint() -> None:
    content = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    commands = [content[name] for name in ("updateContentCommand", "postAttachCommand")]
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", MAKEFILE, re.MULTILINE)
    (port,) = content["forwardPorts"]
    assert re.search(rf"^PORT \?= {port}$", MAKEFILE, re.MULTILINE)
