"""Tests of OpenAI's client: several versions, through the proxy and with the transport.

The newest version also reaches the proxy through LiteLLM's.
"""

import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from demo_model import ANSWERS
from support import ROOT
from support.clients import (
    ENVIRON,
    PYTHON_CLIENTS,
    client_answers,
    client_folder,
    require_installed,
)
from support.models.minilm import DIMENSIONS
from support.processes.servers import ACCOUNT, KEY, LocalEndpoint, client_proxy, start_server

FOLDERS = {"1": client_folder("openai-1"), "2": PYTHON_CLIENTS}
NEWEST = "3"
PROXY, TRANSPORT = "proxy", "transport"
# LiteLLM's provider for servers like vLLM's.
PROVIDER = "hosted_vllm"
ANSWER_START = "This worker turns a Hugging Face model"
COUNT_ANSWER = ANSWERS["Count to ten."]


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


@pytest.fixture(scope="module", params=[PROXY, TRANSPORT])
def platform_host(
    request: pytest.FixtureRequest,
    make_endpoint: LocalEndpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OpenAIHost]:
    """Reach a worker behind the local platform, through the proxy or with the transport."""
    if request.param == TRANSPORT:
        yield OpenAIHost(TRANSPORT, make_endpoint.api_url, ACCOUNT)
        return
    log = tmp_path_factory.mktemp("proxy") / "log"
    with client_proxy(make_endpoint.api_url, log, PROXY_API_KEY=KEY) as proxy:
        yield OpenAIHost(PROXY, proxy.url)


@pytest.fixture(scope="module", params=["1", "2", NEWEST])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@functools.cache
def run_part(host: OpenAIHost, version: str, part: str) -> Any:
    """Return the results of a part with a version of the client; run it once."""
    return host.run_calls(version, part)


def check_chats(answers: dict[str, Any]) -> None:
    for found in (answers, answers["async"]):
        assert found["whole"] == COUNT_ANSWER
        # vLLM merges tokens that are not read immediately, on a busy machine all after the first.
        assert ("".join(found["pieces"]), len(found["pieces"]) > 1) == (COUNT_ANSWER, True)
    assert answers["calls"] == [["job_status", {"job_id": "42"}]]
    assert answers["embeddings"] == [DIMENSIONS] * 2


def check_batch(found: dict[str, Any]) -> None:
    assert (found["batch"]["status"], found["batch"]["metadata"]) == ("completed", {"a": "b"})
    assert found["batch"]["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert list(found["answers"]) == [f"c{number}" for number in range(20)]
    assert all(text.startswith(ANSWER_START) for text in found["answers"].values())
    assert [found[name] for name in ("listed", "files", "deleted")] == [True] * 3
    assert (int(found["refusal"]["code"]), found["refusal"]["param"]) == (404, "batch_id")


def test_a_chat_is_the_same_whole_and_streamed_with_asyncio_and_without(
    version: str, platform_host: OpenAIHost
) -> None:
    check_chats(run_part(platform_host, version, "chats"))


def test_models_and_errors_come_from_the_worker(version: str, platform_host: OpenAIHost) -> None:
    found = run_part(platform_host, version, "chats")
    assert {"demo", "tiny/demo", "minilm"} <= set(found["models"])
    assert (found["refusal"]["code"], "gpt-4" in found["refusal"]["message"]) == (404, True)


def test_a_client_runs_lists_and_reads_a_batch_and_deletes_its_files(
    version: str, platform_host: OpenAIHost
) -> None:
    check_batch(run_part(platform_host, version, "batches"))


@pytest.fixture(scope="module")
def litellm(
    make_endpoint: LocalEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAIHost]:
    """Reach a worker through LiteLLM's proxy, in front of the proxy."""
    installed, folder = client_folder("litellm-proxy"), tmp_path_factory.mktemp("litellm")
    require_installed(installed)
    with client_proxy(make_endpoint.api_url, folder / "proxy.log", PROXY_API_KEY=KEY) as proxy:
        access = {"api_base": f"{proxy.url}/v1", "api_key": KEY}
        config = {
            "model_list": [
                {"model_name": name, "litellm_params": {"model": f"{PROVIDER}/{name}", **access}}
                for name in ("demo", "minilm")
            ],
            "files_settings": [{"custom_llm_provider": PROVIDER, **access}],
            "general_settings": {"master_key": "sk-gateway"},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        environ = {**ENVIRON, "HOME": str(folder)}
        command = (installed / "bin" / "litellm", "--config", folder / "config.yaml")
        options = ("--host", "127.0.0.1", "--port", "0")
        with start_server((*command, *options), environ, folder / "log") as gateway:
            yield OpenAIHost(PROXY, gateway.url, "sk-gateway")


def test_litellms_proxy_forwards_chats_tools_and_embeddings(litellm: OpenAIHost) -> None:
    check_chats(litellm.run_calls(NEWEST, "chats"))


def test_litellms_proxy_forwards_files_and_batches(litellm: OpenAIHost) -> None:
    # The provider is part of the address, because neither a file nor a batch names a model.
    host = replace(litellm, address=f"{litellm.address}/{PROVIDER}")
    check_batch(host.run_calls(NEWEST, "batches"))
