"""Programs that print the URL on which they listen.

They are workers with ``--serve``, the client's proxy in front of a local endpoint, and a local
endpoint as a developer starts it: `make endpoint`, or the emulator's command.
"""

import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT
from support.processes.background import (
    HUNG_S,
    BackgroundProcess,
    pids_with_variable,
    start_command,
)
from support.processes.commands import SCRIPT
from support.processes.memory import peak_bytes, reset_peaks

# Keys of a worker with ``--serve``, and of the platform's account behind the proxy.
KEY = "sk-served"
ACCOUNT = "rpa_of-the-account"
ADDRESS = re.compile(r"(?:Uvicorn running on|The endpoint:) +(http://[^\s\"]+)")
READY = "Try it in another terminal:"
# A variable that a local endpoint's workers inherit.
ENDPOINT_VARIABLE = "WORKERS_OF"


@dataclass(frozen=True)
class ServerProcess(BackgroundProcess):
    """A program that listens, with the URL that it has printed."""

    @property
    def url(self) -> str:
        match = ADDRESS.search(self.output)
        assert match, self.output
        return match[1]

    def peak(self, *, begin: bool = False) -> int:
        """Return the peak memory of the process in bytes; ``begin`` resets the peak first."""
        if begin:
            reset_peaks([self.process.pid])
        return peak_bytes([self.process.pid])


@contextmanager
def start_server(
    command: Sequence[str | Path], environ: Mapping[str, str], log: Path
) -> Iterator[ServerProcess]:
    """Start a program and wait for the URL that it prints; terminate it at the end of the block.

    The command (see ``start_command``) chooses a free port: ``--port 0``.
    """
    with start_command(command, environ, log) as running:
        program = ServerProcess(running.process, log)
        program.wait_for_output("Uvicorn running on ")
        yield program
        program.process.terminate()
        program.wait_for_exit()


def http_worker(
    environ: Mapping[str, str], log: Path, *options: str
) -> AbstractContextManager[ServerProcess]:
    """Start a worker that serves plain HTTP."""
    return start_server([SCRIPT, "--serve", "--port", "0", *options], environ, log)


@contextmanager
def client_proxy(api_url: str, log: Path, **environ: str) -> Iterator[ServerProcess]:
    """Start a proxy for the endpoint `local`, with variables in addition to the account's key."""
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


@dataclass(frozen=True)
class LocalEndpoint(ServerProcess):
    """A running local endpoint, with the URLs that it has printed."""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/openai/v1"

    @property
    def api_url(self) -> str:
        return self.url.removesuffix("/local")

    @property
    def root_url(self) -> str:
        return self.api_url.removesuffix("/v2")

    @property
    def examples(self) -> str:
        return self.output.split(READY)[1].split("\n\nworker-")[0]

    def control(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call a control route, with POST if there is a body."""
        return _call(f"{self.root_url}/control/{path}", body)

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call one of the endpoint's routes, with POST if there is a body."""
        return _call(f"{self.url}/{path}", body)

    def run(self, payload: Any) -> list[Any]:
        """Run a job; return its yields."""
        report = self.call("runsync", {"input": payload})
        assert report["status"] == "COMPLETED", report
        yields: list[Any] = report["output"]
        return yields

    def read_metric(self, name: str) -> float:
        """Return the sum of a metric's series."""
        (text,) = self.run({"openai_route": "/metrics"})
        series = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
        return sum(float(line.rsplit(" ", 1)[1]) for line in series)

    def press_ctrl_c(self) -> None:
        """Interrupt the same processes as a terminal: the workers have their own process groups."""
        os.killpg(self.process.pid, signal.SIGINT)

    def leftover_pids(self) -> list[int]:
        """Return the ids of processes that still have this endpoint's variable."""
        return pids_with_variable(ENDPOINT_VARIABLE, str(self.log))


def _call(url: str, body: dict[str, Any] | None) -> Any:
    data, headers = None if body is None else json.dumps(body).encode(), {}
    if data is not None:
        headers["Content-Type"] = "application/json"
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=HUNG_S) as got:
        return json.load(got)


@contextmanager
def local_endpoint(
    command: Sequence[str | Path], environ: dict[str, str], log: Path
) -> Iterator[LocalEndpoint]:
    """Start an endpoint and wait for its URL; press Ctrl-C at the end of the block."""
    environ = {**environ, ENDPOINT_VARIABLE: str(log)}
    with start_command(command, environ, log) as running:
        endpoint = LocalEndpoint(running.process, log)
        try:
            endpoint.wait_for_output("The endpoint: ")
            yield endpoint
        finally:
            if endpoint.process.poll() is None:
                endpoint.press_ctrl_c()
            endpoint.wait_for_exit()
        assert endpoint.leftover_pids() == []
