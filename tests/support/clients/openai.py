"""Versions of OpenAI's client, each in a separate process, and the ways to reach a worker."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT
from support.clients.scripts import client_answers, require_installed
from support.processes.servers import ACCOUNT, KEY, LocalEndpoint, client_proxy, start_server

FOLDERS = {"1": ROOT / ".clients" / "openai-1", "2": ROOT / ".clients"}
NEWEST = "3"
PROXY, TRANSPORT = "proxy", "transport"
LITELLM = ROOT / ".clients" / "litellm-proxy"
# LiteLLM's provider for servers like vLLM's.
PROVIDER = "hosted_vllm"
GATEWAY_KEY = "sk-gateway"
LITELLM_ENVIRON = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise LiteLLM downloads its price list on import
    "LITELLM_MODE": "PRODUCTION",  # otherwise LiteLLM reads a .env file
}


@dataclass(frozen=True)
class OpenAIHost:
    """A worker or a platform as programs reach it: the arguments of a program."""

    way: str
    address: str
    key: str = KEY

    def run_calls(self, version: str, part: str) -> Any:
        """Run ``openai_calls.py``; return the answers that it printed."""
        interpreter: str | Path = sys.executable
        if version != NEWEST:
            require_installed(FOLDERS[version])
            interpreter = FOLDERS[version] / "bin" / "python"
        command = [interpreter, "-m", "clients.programs.openai_calls"]
        environ = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"}
        answers = client_answers([*command, self.way, self.address, self.key, part], environ)
        assert answers["version"].startswith(f"{version}.")
        return answers[part]


@contextmanager
def endpoint_host(way: str, endpoint: LocalEndpoint, log: Path) -> Iterator[OpenAIHost]:
    """Return a host for a local endpoint, through a proxy or with the transport."""
    if way == TRANSPORT:
        yield OpenAIHost(way, endpoint.api_url, ACCOUNT)
        return
    with client_proxy(endpoint.api_url, log, PROXY_API_KEY=KEY) as proxy:
        yield OpenAIHost(way, proxy.url)


@contextmanager
def litellm_host(
    endpoint: LocalEndpoint, models: Sequence[str], folder: Path
) -> Iterator[OpenAIHost]:
    """Return a host for a local endpoint, through LiteLLM's proxy in front of a proxy.

    LiteLLM forwards requests of these models, and has its home and files in the folder.
    """
    require_installed(LITELLM)
    with client_proxy(endpoint.api_url, folder / "proxy.log", PROXY_API_KEY=KEY) as proxy:
        access = {"api_base": f"{proxy.url}/v1", "api_key": KEY}
        config = {
            "model_list": [
                {"model_name": name, "litellm_params": {"model": f"{PROVIDER}/{name}", **access}}
                for name in models
            ],
            "files_settings": [{"custom_llm_provider": PROVIDER, **access}],
            "general_settings": {"master_key": GATEWAY_KEY},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        environ = {**LITELLM_ENVIRON, "PATH": os.environ["PATH"], "HOME": str(folder)}
        command = (LITELLM / "bin" / "litellm", "--config", folder / "config.yaml")
        options = ("--host", "127.0.0.1", "--port", "0")
        with start_server((*command, *options), environ, folder / "log") as gateway:
            yield OpenAIHost(PROXY, gateway.url, GATEWAY_KEY)
