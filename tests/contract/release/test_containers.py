"""Tests that the files for containers name existing files, targets, options and ports."""

import json
import re
import shlex

import pytest
import yaml
from support import ROOT

from emulator.command_line import read_command_line as read_emulator_options
from llm_worker_client.__main__ import read_command_line as read_client_options

pytestmark = pytest.mark.contract

SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
MAKEFILE = (ROOT / "Makefile").read_text()


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
    command = shlex.split(SERVICES["proxy"]["command"])
    assert command[:3] == [".venv/bin/python", "-m", "llm_worker_client"]
    proxy = read_client_options(command[3:])
    assert proxy.base_url == f"http://endpoint:{values['PORT']}/v2"
    ports = {"endpoint": values["PORT"], "proxy": str(proxy.port)}
    assert {name: service["ports"] for name, service in SERVICES.items()} == {
        name: [f"127.0.0.1:{port}:{port}"] for name, port in ports.items()
    }


def test_the_development_container_installs_and_starts_the_endpoint() -> None:
    content = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    commands = [content[name] for name in ("updateContentCommand", "postAttachCommand")]
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", MAKEFILE, re.MULTILINE)
    (port,) = content["forwardPorts"]
    assert re.search(rf"^PORT \?= {port}$", MAKEFILE, re.MULTILINE)
