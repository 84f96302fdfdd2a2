"""The client's proxy as a caller starts it, in front of a local endpoint."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import ROOT
from support.processes.http_worker import ServerProcess, start_server

ACCOUNT = "rpa_of-the-account"

ClientProxy = ServerProcess


@contextmanager
def client_proxy(api_url: str, log: Path, **environ: str) -> Iterator[ClientProxy]:
    """Start a proxy for the endpoint `local` on a free port; terminate it at the end of the block.

    Args:
        api_url: URL of the platform's API.
        log: File for the output.
        environ: Variables in addition to the account's key.
    """
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "src"),
        "RUNPOD_API_KEY": ACCOUNT,
        **environ,
    }
    command = [sys.executable, "-m", "llm_worker_client", "proxy", "--endpoint", "local"]
    with start_server([*command, "--port", "0", "--base-url", api_url], variables, log) as proxy:
        yield proxy
    assert ACCOUNT not in proxy.output
