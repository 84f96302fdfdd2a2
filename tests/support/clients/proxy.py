"""The client's proxy as a caller starts it, in front of a local endpoint."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import ROOT
from support.processes.http_worker import Served, served

ACCOUNT = "rpa_of-the-account"

ClientProxy = Served


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
    with served([*command, "--port", "0", "--base-url", api_url], variables, log) as proxy:
        yield proxy
    assert ACCOUNT not in proxy.output
