"""The client's proxy as a caller starts it, in front of a local endpoint."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import ROOT
from support.processes.background import Background, background
from support.processes.http_worker import ADDRESS

ACCOUNT = "rpa_of-the-account"


@dataclass(frozen=True)
class ClientProxy(Background):
    """A proxy that is ready, with the address that it has printed."""

    @property
    def url(self) -> str:
        found = ADDRESS.search(self.output)
        assert found, self.output
        return found[1]


@contextmanager
def client_proxy(api_url: str, log: Path, **environ: str) -> Iterator[ClientProxy]:
    """Start a proxy of the endpoint `local` on a port of its own; leaving ends it.

    Args:
        api_url: of the platform.
        log: the file for its output.
        environ: variables besides the account's key.
    """
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "src"),
        "RUNPOD_API_KEY": ACCOUNT,
        **environ,
    }
    command = [sys.executable, "-m", "llm_worker_client", "proxy", "--endpoint", "local"]
    with background([*command, "--port", "0", "--base-url", api_url], variables, log) as running:
        proxy = ClientProxy(running.process, log)
        proxy.wait_for_output("Uvicorn running on ")
        yield proxy
        proxy.process.terminate()
        proxy.ended()
        assert ACCOUNT not in proxy.output
