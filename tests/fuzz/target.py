"""Targets of the attacks: a worker on the demo model, behind the emulator or as an HTTP server."""

import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psutil
from support import ROOT
from support.processes.background import BackgroundProcess, start_command
from support.processes.memory import long_lived_tree, process_tree
from support.processes.servers import ADDRESS
from support.tables.attacks import Http

HELLO = {"prompt": "Hi", "sampling_params": {"max_tokens": 4, "ignore_eos": True}}
# The status in an error object; within a string, its quotation marks are escaped.
CODE = re.compile(r'"code": (\d{3})\b')
PYTHON = [sys.executable, "-u"]
# Without a parser, vLLM refuses all requests that require or name a tool.
TOOLS = {"ENABLE_AUTO_TOOL_CHOICE": "1", "TOOL_CALL_PARSER": "hermes"}
QUIET = {"USE_TQDM_ON_LOAD": "0", "PYTHONWARNINGS": "ignore", "TORCH_LOGS": "-torch._library"}


@dataclass(frozen=True)
class Outcome:
    """The result of a request: its status (None without a response) and its text."""

    status: int | None
    text: str

    @property
    def is_full(self) -> bool:
        """Whether the worker reported that it is full and that a retry can help."""
        text = self.text.replace('\\"', '"').replace(" ", "")
        return self.status == 503 and '"retryable":true' in text

    @property
    def is_handled(self) -> bool:
        """Whether this is no failure of the worker."""
        return self.status is not None and (self.status < 500 or self.is_full)


class Target(ABC):
    """A running worker with its processes and its log."""

    # The neighbour's path and body, and a text that each good response contains.
    hello: ClassVar[tuple[str, dict[str, Any], str]]
    arguments: ClassVar[Sequence[str]]
    ready: ClassVar[str]

    def __init__(self, checkout: Path, folder: Path, settings: dict[str, str]) -> None:
        self._checkout = checkout
        self._folder = folder
        self._settings = settings
        self._running: BackgroundProcess | None = None

    @property
    @abstractmethod
    def url(self) -> str: ...
    @property
    @abstractmethod
    def log(self) -> Path: ...
    @property
    @abstractmethod
    def worker_pid(self) -> int: ...
    @abstractmethod
    def send(self, payload: Any, limit_s: float) -> Outcome: ...

    @property
    def pids(self) -> list[int]:
        return long_lived_tree(self.worker_pid)

    def has_lost(self, pids: list[int]) -> bool:
        """Return whether one of these processes has exited; the worker may have started others."""
        return not {*pids} <= {*self.pids}

    @property
    def running(self) -> BackgroundProcess:
        assert self._running is not None
        return self._running

    @contextmanager
    def start(self) -> Iterator[None]:
        """Start the worker and wait until it is ready; on exit, kill all of its processes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        model = {"MODEL_NAME": str(ROOT / ".models" / "demo")}
        environ = {
            **inherited,
            **QUIET,
            **TOOLS,
            **model,
            "PYTHONPATH": str(self._checkout / "src"),
        }
        command = [*PYTHON, *self.arguments]
        output = self._folder / "output"
        with start_command(
            command, {**environ, **self._settings}, output, folder=self._checkout
        ) as self._running:
            try:
                self.running.wait_for_output(self.ready)
                yield
            finally:
                _kill(process_tree(self.running.process.pid))


class Endpoint(Target):
    """A worker behind the emulator; a payload is the input of a job."""

    hello = ("/runsync?wait=150000", {"input": HELLO}, '"COMPLETED"')
    ready = "Try it in another terminal:"

    @property
    def arguments(self) -> Sequence[str]:  # type: ignore[override]  # depends on the folder
        emulator = ["-m", "emulator", "--port", "0", "--logs", str(self._folder)]
        # Rows may wait for longer than the platform's gateway.
        return [*emulator, "--gateway-timeout", "600", "--", *PYTHON, "src/handler.py"]

    @property
    def url(self) -> str:
        return self.running.output.split("The endpoint: ")[1].split()[0]

    @property
    def log(self) -> Path:
        return self._folder / "worker-1.log"

    @property
    def worker_pid(self) -> int:
        children = [pid for pid in process_tree(self.running.process.pid)[1:] if _is_worker(pid)]
        return children[0] if children else 0

    def send(self, payload: Any, limit_s: float) -> Outcome:
        """Run a job; a payload of bytes is sent unchanged as the JSON of its input."""
        text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        wait_ms = round(max(1, limit_s) * 1000)
        request = urllib.request.Request(
            f"{self.url}/runsync?wait={wait_ms}", b'{"input": %s}' % text
        )
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=limit_s + 10) as response:
                report = json.load(response)
        except urllib.error.HTTPError as error:
            return Outcome(error.code, error.read().decode(errors="replace"))
        except (OSError, http.client.HTTPException) as error:
            return Outcome(None, repr(error))
        if report["status"] not in ("COMPLETED", "FAILED"):
            self._cancel(report["id"])
            return Outcome(None, report["status"])
        return _outcome(report)

    def _cancel(self, job: str) -> None:
        with suppress(OSError):
            urllib.request.urlopen(f"{self.url}/cancel/{job}", b"", timeout=10).close()


class Server(Target):
    """A worker as an HTTP server; a payload is a request."""

    hello = ("/v1/completions", {"prompt": "Hi", "max_tokens": 4}, '"choices"')
    arguments = ("src/handler.py", "--serve", "--port", "0")
    ready = "Uvicorn running on "

    @property
    def url(self) -> str:
        found = ADDRESS.search(self.running.output)
        assert found, self.running.output
        return found[1]

    @property
    def log(self) -> Path:
        return self._folder / "output"

    @property
    def worker_pid(self) -> int:
        return self.running.process.pid if self.running.process.poll() is None else 0

    def send(self, payload: Http, limit_s: float) -> Outcome:
        limit_s = payload.patience_s or limit_s
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=limit_s)
        deadline, sent = time.monotonic() + limit_s, False
        try:
            options = {"skip_host": True, "skip_accept_encoding": True}
            connection.putrequest(payload.method, payload.path, **options)
            for name, value in payload.all_headers.items():
                connection.putheader(name, value)
            connection.endheaders(payload.body)
            sent = True
            response, text = connection.getresponse(), b""
            while piece := response.read1():
                text += piece
                if time.monotonic() > deadline:
                    raise TimeoutError
            return Outcome(response.status, text.decode(errors="replace"))
        except (OSError, http.client.HTTPException) as error:
            # The server may refuse a request while its body is being sent, and some callers
            # disconnect on purpose.
            is_refused = not sent and isinstance(error, BrokenPipeError | ConnectionResetError)
            is_abandoned = payload.patience_s > 0 and isinstance(error, TimeoutError)
            return Outcome(499 if is_refused or is_abandoned else None, repr(error))
        finally:
            connection.close()


def _is_worker(pid: int) -> bool:
    with suppress(psutil.Error):
        return any("handler.py" in part for part in psutil.Process(pid).cmdline())
    return False


def _outcome(report: dict[str, Any]) -> Outcome:
    """Return the outcome of a job, with the worst status of all errors in its output."""
    if report["status"] == "FAILED":
        text = str(report.get("error"))
        try:
            return Outcome(int(json.loads(text)["error"]["code"]), text)
        except (ValueError, KeyError, TypeError):
            return Outcome(500, text)
    output = json.dumps(report.get("output"))
    return Outcome(max([200, *map(int, CODE.findall(output))]), output[:2_000])


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(psutil.Error):
            psutil.Process(pid).kill()
