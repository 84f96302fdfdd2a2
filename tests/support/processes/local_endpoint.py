"""A local endpoint as a developer starts it: `make endpoint`, or the emulator's command."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes.background import HUNG_S, background, with_variable
from support.processes.http_worker import Served

# A variable that the endpoint's workers inherit.
WORKERS_OF = "WORKERS_OF"
READY = "Try it in another terminal:"


@dataclass(frozen=True)
class LocalEndpoint(Served):
    """A local endpoint that runs, with the URLs that it has printed."""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/openai/v1"

    @property
    def api_url(self) -> str:
        return self.url.removesuffix("/local")

    @property
    def examples(self) -> str:
        return self.output.split(READY)[1].split("\n\nworker-")[0]

    def control(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call a control route: POST where there is a body."""
        return _call(f"{self.api_url.removesuffix('/v2')}/control/{path}", body)

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call one of the endpoint's routes: POST where there is a body."""
        return _call(f"{self.url}/{path}", body)

    def run(self, payload: Any) -> list[Any]:
        """Run a job, and return its yields."""
        report = self.call("runsync", {"input": payload})
        assert report["status"] == "COMPLETED", report
        yields: list[Any] = report["output"]
        return yields

    def press_ctrl_c(self) -> None:
        """Interrupt the process group that a terminal would: not the workers, which have theirs."""
        os.killpg(self.process.pid, signal.SIGINT)

    def left_behind(self) -> list[int]:
        """Find the processes that still have this endpoint's variable in their environment."""
        return with_variable(WORKERS_OF, str(self.log))


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
    """Start an endpoint and wait for its address; leaving presses Ctrl-C and sees to the end."""
    environ = {**environ, WORKERS_OF: str(log)}
    with background(command, environ, log) as running:
        endpoint = LocalEndpoint(running.process, log)
        try:
            endpoint.wait_for_output("The endpoint: ")
            yield endpoint
        finally:
            if endpoint.process.poll() is None:
                endpoint.press_ctrl_c()
            endpoint.ended()
        assert endpoint.left_behind() == []
