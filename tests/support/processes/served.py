"""A local endpoint as a developer starts it: a process of its own, told what it says of itself."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT
from support.processes.endpoints import START_S

READY = "Try it in another terminal:"


@dataclass(frozen=True)
class Served:
    """An endpoint that is being served."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def told(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def url(self) -> str:
        return self.told.split("The endpoint: ")[1].split()[0]

    @property
    def openai_url(self) -> str:
        return f"{self.url}/openai/v1"

    @property
    def api_url(self) -> str:
        return self.url.removesuffix("/local")

    @property
    def examples(self) -> str:
        return self.told.split(READY)[1].split("\n\nworker-")[0]

    def wait_until_told(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + START_S
        while not (self.output.exists() and self.told.count(text) >= times):
            assert self.process.poll() is None, self.told
            assert time.monotonic() < deadline, self.told
            time.sleep(0.05)

    def control(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call a control route: POST where there is a body."""
        url = f"{self.api_url.removesuffix('/v2')}/control/{path}"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=10) as answer:
            return json.load(answer)

    def press_ctrl_c(self) -> None:
        """Interrupt the process group that a terminal would: not the workers, which have theirs."""
        os.killpg(self.process.pid, signal.SIGINT)

    def left_behind(self) -> list[int]:
        """The processes that still have this endpoint's address in their environment."""
        address = self.url.encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environ = (process / "environ").read_bytes()
            except OSError:
                continue
            if address in environ:
                found.append(int(process.name))
        return found


@contextmanager
def served(command: list[str], environ: dict[str, str], output: Path) -> Iterator[Served]:
    """Start an endpoint and wait for its address; leaving presses Ctrl-C and sees to the end."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    endpoint = Served(process, output)
    try:
        endpoint.wait_until_told("The endpoint: ")
        yield endpoint
    finally:
        if process.poll() is None:
            endpoint.press_ctrl_c()
        process.wait(30)
    assert endpoint.left_behind() == []
