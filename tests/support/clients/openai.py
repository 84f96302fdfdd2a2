"""Versions of OpenAI's client, each in a separate process, and the ways to reach a worker."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT
from support.clients.proxy import ACCOUNT, client_proxy
from support.clients.scripts import client_answers, require_installed
from support.processes.http_worker import KEY
from support.processes.local_endpoint import LocalEndpoint

FOLDERS = {"1": ROOT / ".clients" / "openai-1", "2": ROOT / ".clients"}
NEWEST = "3"
PROXY, TRANSPORT = "proxy", "transport"


@dataclass(frozen=True)
class OpenAIHost:
    """A worker or a platform as programs reach it: the arguments of a program."""

    way: str
    address: str
    key: str = KEY

    def run_calls(self, version: str, part: str) -> Any:
        """Run ``openai_calls.py``; return the answers that it printed."""
        interpreter: str | Path = sys.executable
        if version != NEWEST:
            require_installed(FOLDERS[version])
            interpreter = FOLDERS[version] / "bin" / "python"
        command = [interpreter, "-m", "clients.programs.openai_calls"]
        environ = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"}
        answers = client_answers([*command, self.way, self.address, self.key, part], environ)
        assert answers["version"].startswith(f"{version}.")
        return answers[part]


@contextmanager
def endpoint_host(way: str, endpoint: LocalEndpoint, log: Path) -> Iterator[OpenAIHost]:
    """Return a host for a local endpoint, through a proxy or with the transport."""
    if way == TRANSPORT:
        yield OpenAIHost(way, endpoint.api_url, ACCOUNT)
        return
    with client_proxy(endpoint.api_url, log, PROXY_API_KEY=KEY) as proxy:
        yield OpenAIHost(way, proxy.url)
