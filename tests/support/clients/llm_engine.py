"""Scripts for Scale LLM Engine, each in a separate process, and workers for them.

They run unchanged with LLM Engine's own client, or with only the import changed with our classes.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT
from support.clients.scripts import client_answers
from support.models.lora import MAX_RANK, make_adapter
from support.processes.servers import ACCOUNT, KEY, LocalEndpoint, client_proxy, http_worker

CLIENT = ROOT / ".clients" / "llm-engine"
PROGRAMS = ROOT / "tests" / "clients" / "programs"
OWN_PACKAGE = re.compile(r"\bllmengine\b")
# Ways in which a script reaches a worker: over HTTP; through the proxy, in front of the local
# platform; or with our classes.
SERVE, PROXY, CLASSES = WAYS = ("serve", "proxy", "classes")
# Settings of a worker with the adapters that a test needs.
WORKER_SETTINGS = {
    "ENABLE_LORA": "1",
    "MAX_LORA_RANK": str(MAX_RANK),
    # More than a test uses: on a CPU vLLM would mix adapters up.
    "MAX_LORAS": "8",
    "ALLOW_UNLOAD_LORA_ADAPTER": "1",
}


@dataclass(frozen=True)
class LLMEngineHost:
    """A worker that serves the demo model and adapters to scripts.

    ``way`` is one of WAYS, ``environ`` the environment of the scripts.
    """

    way: str
    # For our classes, the platform's URL.
    url: str
    volume: Path
    model: Path
    environ: dict[str, str]

    def run_program(
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
            stdin = replace_import(stdin)
        return client_answers(command, self.environ, cwd, stdin)

    def adapter(self, name: str) -> Path:
        """Return the directory of an adapter on the volume; create it if it is missing."""
        directory = self.volume / "adapters" / name
        if not directory.is_dir():
            make_adapter(directory, self.model)
        return directory


def replace_import(script: str) -> str:
    """Return a script that imports our classes instead of LLM Engine's own client."""
    return OWN_PACKAGE.sub("llm_worker_client.llm_engine", script)


@contextmanager
def serve_host(environ: dict[str, str], folder: Path, **settings: str) -> Iterator[LLMEngineHost]:
    """Start a worker with `--serve` and adapters, in an empty directory."""
    volume = folder / "volume"
    volume.mkdir()
    serving = {**WORKER_SETTINGS, "SERVE_API_KEY": KEY, "BASE_PATH": str(volume)}
    with http_worker({**environ, **serving, **settings}, folder / "log") as running:
        yield _over_http(SERVE, running.url, volume, Path(environ["MODEL_NAME"]))


@contextmanager
def endpoint_host(
    way: str, endpoint: LocalEndpoint, volume: Path, model: Path, folder: Path
) -> Iterator[LLMEngineHost]:
    """Return a host for the worker of a local endpoint, with an empty directory."""
    if way == CLASSES:
        yield _by_classes(endpoint.api_url, volume, model, folder)
        return
    with client_proxy(endpoint.api_url, folder / "log", PROXY_API_KEY=KEY) as proxy:
        yield _over_http(way, proxy.url, volume, model)


def _over_http(way: str, url: str, volume: Path, model: Path) -> LLMEngineHost:
    """Return a host for LLM Engine's own client."""
    environ = {
        "PYTHONPATH": str(ROOT / "tests"),
        "LLM_ENGINE_BASE_PATH": f"{url}/",
        "SCALE_API_KEY": KEY,
        # Do not look for the newest version on the internet.
        "LLM_ENGINE_DISABLE_VERSION_CHECK": "true",
    }
    return LLMEngineHost(way, url, volume, model, environ)


def _by_classes(api_url: str, volume: Path, model: Path, folder: Path) -> LLMEngineHost:
    programs = folder / "clients" / "programs"
    programs.mkdir(parents=True)
    for program in PROGRAMS.glob("llm_engine_*.py"):
        (programs / program.name).write_text(replace_import(program.read_text()))
    environ = {
        "PYTHONPATH": f"{folder}:{ROOT / 'src'}",
        "RUNPOD_ENDPOINT_ID": "local",
        "RUNPOD_API_KEY": ACCOUNT,
        "RUNPOD_ENDPOINT_BASE_URL": api_url,
    }
    return LLMEngineHost(CLASSES, api_url, volume, model, environ)
