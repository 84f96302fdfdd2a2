"""Scripts for Scale LLM Engine, each in a process of its own, and workers for them.

They run with its own client, unchanged; or with the client's classes, where nothing but the import
is changed.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT
from support.clients.proxy import ACCOUNT, client_proxy
from support.clients.scripts import answers_of
from support.models.lora import MOST_RANK, make_adapter
from support.processes.http_worker import KEY, http_worker
from support.processes.local_endpoint import LocalEndpoint

CLIENT = ROOT / ".clients" / "llm-engine"
PROGRAMS = ROOT / "tests" / "clients" / "programs"
ITS_OWN = re.compile(r"\bllmengine\b")
# How a script reaches a worker: over HTTP; through the proxy, in front of the local platform; or
# with the classes.
SERVE, PROXY, CLASSES = WAYS = ("serve", "proxy", "classes")
# Of a worker with the adapters that a test needs.
SERVING = {
    "ENABLE_LORA": "1",
    "MAX_LORA_RANK": str(MOST_RANK),
    # More than there are: on a CPU vLLM would mix them up.
    "MAX_LORAS": "8",
    "ALLOW_UNLOAD_LORA_ADAPTER": "1",
}


@dataclass(frozen=True)
class Host:
    """A worker that serves the demo model, and adapters, as scripts reach it.

    Args:
        way: one of WAYS.
        url: the address for scripts; for the classes the platform's.
        volume: the root of its volume.
        model: the demo model's directory.
        environ: what scripts need to reach it.
    """

    way: str
    url: str
    volume: Path
    model: Path
    environ: dict[str, str]

    def printed(
        self,
        program: str,
        *arguments: str,
        stdin: str | None = None,
        cwd: Path = ROOT,
    ) -> dict[str, Any]:
        """Run ``llm_engine_<program>.py``; return the answers that it printed."""
        interpreter = sys.executable if self.way == CLASSES else str(CLIENT / "bin" / "python")
        command = [interpreter, "-m", f"clients.programs.llm_engine_{program}", *arguments]
        if self.way == CLASSES and stdin is not None:
            stdin = changed(stdin)
        return answers_of(command, self.environ, cwd, stdin)

    def adapter(self, name: str) -> Path:
        """Return the directory of an adapter on the volume; make it unless it is there."""
        directory = self.volume / "adapters" / name
        if not directory.is_dir():
            make_adapter(directory, self.model)
        return directory


def changed(script: str) -> str:
    """Return a script with its import changed from LLM Engine's own client to the classes."""
    return ITS_OWN.sub("llm_worker_client.llm_engine", script)


@contextmanager
def served(environ: dict[str, str], folder: Path, **settings: str) -> Iterator[Host]:
    """Start a worker with `--serve`, with adapters, in an empty directory."""
    volume = folder / "volume"
    volume.mkdir()
    serving = {**SERVING, "SERVE_API_KEY": KEY, "BASE_PATH": str(volume)}
    with http_worker({**environ, **serving, **settings}, folder / "log") as running:
        yield _over_http(SERVE, running.url, volume, Path(environ["MODEL_NAME"]))


@contextmanager
def reached(
    way: str, endpoint: LocalEndpoint, volume: Path, model: Path, folder: Path
) -> Iterator[Host]:
    """Reach the worker of a local endpoint, in an empty directory."""
    if way == CLASSES:
        yield _by_classes(endpoint.api_url, volume, model, folder)
        return
    with client_proxy(endpoint.api_url, folder / "log", PROXY_API_KEY=KEY) as proxy:
        yield _over_http(way, proxy.url, volume, model)


def _over_http(way: str, url: str, volume: Path, model: Path) -> Host:
    """Return a host for LLM Engine's own client."""
    environ = {
        "PYTHONPATH": str(ROOT / "tests"),
        "LLM_ENGINE_BASE_PATH": f"{url}/",
        "SCALE_API_KEY": KEY,
        # Without a look at the newest version on the internet.
        "LLM_ENGINE_DISABLE_VERSION_CHECK": "true",
    }
    return Host(way, url, volume, model, environ)


def _by_classes(api_url: str, volume: Path, model: Path, folder: Path) -> Host:
    programs = folder / "clients" / "programs"
    programs.mkdir(parents=True)
    for program in PROGRAMS.glob("llm_engine_*.py"):
        (programs / program.name).write_text(changed(program.read_text()))
    environ = {
        "PYTHONPATH": f"{folder}:{ROOT / 'src'}",
        "RUNPOD_ENDPOINT_ID": "local",
        "RUNPOD_API_KEY": ACCOUNT,
        "RUNPOD_ENDPOINT_BASE_URL": api_url,
    }
    return Host(CLASSES, api_url, volume, model, environ)
