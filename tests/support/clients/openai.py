"""Versions of OpenAI's client, each in a process of its own, and how they reach a worker."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT
from support.clients.proxy import ACCOUNT, client_proxy
from support.clients.scripts import answers_of, require_installed
from support.processes.http_worker import KEY
from support.processes.local_endpoint import LocalEndpoint

FOLDERS = {"1": ROOT / ".clients" / "openai-1", "2": ROOT / ".clients"}
NEWEST = "3"
PROXY, TRANSPORT = "proxy", "transport"


@dataclass(frozen=True)
class Host:
    """A worker, or a platform, as programs reach it: the arguments of the program."""

    way: str
    address: str
    key: str = KEY

    def printed(self, version: str, part: str) -> Any:
        """Run ``openai_calls.py``; return the answers that it printed."""
        interpreter: str | Path = sys.executable
        if version != NEWEST:
            require_installed(FOLDERS[version])
            interpreter = FOLDERS[version] / "bin" / "python"
        command = [interpreter, "-m", "clients.programs.openai_calls"]
        environ = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"}
        found = answers_of([*command, self.way, self.address, self.key, part], environ)
        assert found["version"].startswith(f"{version}.")
        return found[part]


@contextmanager
def reached(way: str, endpoint: LocalEndpoint, log: Path) -> Iterator[Host]:
    """Reach a local endpoint through a proxy, or by the transport."""
    if way == TRANSPORT:
        yield Host(way, endpoint.api_url, ACCOUNT)
        return
    with client_proxy(endpoint.api_url, log, PROXY_API_KEY=KEY) as proxy:
        yield Host(way, proxy.url)
