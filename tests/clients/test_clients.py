"""Third-party clients, unchanged, each in a process of its own, against `make endpoint`."""

import functools
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from demo_model import ANSWERS
from support import ROOT
from support.clients.scripts import answers_of, printed_by, require_installed
from support.models.minilm import DIMENSIONS
from support.processes.local_endpoint import LocalEndpoint

ANSWER = "This worker turns a Hugging Face model into a serverless endpoint."
JOB = {"job_id": "42"}
DESCRIBED = {"name": "demo", "streams": True, "chunks": [1, 3, 9, 27]}
TOKENIZERS = "lib/python*/site-packages/litellm/litellm_core_utils/tokenizers"
ENVIRON = {
    "PATH": os.environ["PATH"],
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or LiteLLM fetches its price list when imported
    "LITELLM_MODE": "PRODUCTION",  # or LiteLLM reads a .env file
    # Or LangChain fetches the vocabulary of OpenAI's models.
    "TIKTOKEN_CACHE_DIR": "".join(map(str, (ROOT / ".clients").glob(TOKENIZERS))),
}


@dataclass(frozen=True)
class Runtime:
    """What runs programs, and the folder where their client is installed."""

    folder: Path
    command: tuple[str, ...]

    def require(self) -> None:
        """Skip a test where it is not installed."""
        require_installed(self.folder)
        if shutil.which(self.command[0]) is None:
            pytest.skip("there is no Node")


CLIENTS, AGENTS_SDK = ROOT / ".clients", ROOT / ".clients" / "openai-agents"
PYTHON = Runtime(CLIENTS, (str(CLIENTS / "bin" / "python"), "-"))
AGENTS = Runtime(AGENTS_SDK, (str(AGENTS_SDK / "bin" / "python"), "-"))
NODE = Runtime(CLIENTS / "node", ("node", "--input-type=module", "-"))
OWN = Runtime(Path(sys.prefix), (sys.executable, "-"))

PYTHON_CLIENTS, OPENAI = "python_clients.py", "openai_chat.mjs"

Ask = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def answers_to(make_endpoint: LocalEndpoint) -> Ask:
    """Return the answers that a program got. It runs once for all tests."""

    @functools.cache
    def ask(program: str) -> dict[str, Any]:
        runtime = NODE if program == OPENAI else PYTHON
        runtime.require()
        command = [*runtime.command, make_endpoint.openai_url, "demo"]
        # From stdin, so that Node looks for packages in the working directory.
        text = (Path(__file__).parent / "programs" / program).read_text()
        return answers_of(command, ENVIRON, runtime.folder, text)

    return ask


def check_not_found(refusal: dict[str, Any], error: str) -> None:
    """Check that a client has its own exception for an unknown model."""
    assert (refusal["error"], refusal["status"]) == (error, 404)
    assert "nope" in refusal["message"]


def test_nodes_client_streams_the_whole_answer_in_pieces(answers_to: Ask) -> None:
    answers = answers_to(OPENAI)
    assert answers["whole"].startswith(ANSWER)
    assert "".join(answers["pieces"]) == answers["whole"]
    # How many depends on the machine: vLLM joins tokens that nobody has read yet.
    assert len([piece for piece in answers["pieces"] if piece]) > 1
    check_not_found(answers["refusal"], "NotFoundError")


def test_langchain_calls_and_extracts_by_a_tool_and_embeds_texts(answers_to: Ask) -> None:
    answers = answers_to(PYTHON_CLIENTS)["langchain"]
    assert (answers["calls"], answers["structured"]) == ([["job_status", JOB]], JOB)
    first, second = answers["embeddings"]
    assert (len(first), len(second), first != second) == (DIMENSIONS, DIMENSIONS, True)
    # The tokens that it sends by default are not the embedder's.
    assert "out of vocabulary" in answers["refusal of tokens"]["message"]
    check_not_found(answers["refusal"], "OpenAIModelNotFoundError")


def test_litellm_puts_a_streamed_call_together(answers_to: Ask) -> None:
    answers = answers_to(PYTHON_CLIENTS)["litellm"]
    assert answers["calls"] == [["job_status", JOB]]
    check_not_found(answers["refusal"], "NotFoundError")


def test_instructor_extracts_in_its_modes(answers_to: Ask) -> None:
    extracted = {"tools": JOB, "json schema": DESCRIBED}
    assert answers_to(PYTHON_CLIENTS)["instructor"] == extracted


# Examples whose client is in .clients, or that need an adapter:

COUNT = re.escape(ANSWERS["Count to ten."])
WORKER = r"name='demo' streams=True chunks=\[1, 3, 9, 27\]"
CALLED = r"job_status \{'job_id': '42'\}"
DONE = r"Yes, job 42 is done: its status is COMPLETED\."
ADAPTERS = r"adapters: .*\blisted\b.*\ndemo:(.+)\n(?!demo)[\w.-]+:(?!\1\n).+"


@pytest.mark.parametrize(
    ("script", "runtime", "printed"),
    [
        ("frameworks/ai_sdk_chat.mjs", NODE, rf'{COUNT}\njob_status \{{"job_id":"42"\}}\n{DONE}'),
        ("frameworks/langchain_chat.py", PYTHON, rf"{COUNT}\n{WORKER}\n{CALLED}"),
        ("frameworks/litellm_chat.py", PYTHON, rf"{COUNT}\n\[{DIMENSIONS}, {DIMENSIONS}\]"),
        # It describes the tool with more words than the model has learnt: the last is a guess.
        ("frameworks/openai_agent.py", AGENTS, r"called with 42\n.+"),
        ("gateway/openai_adapter.py", OWN, ADAPTERS),
    ],
)
def test_an_example_prints_what_it_should(
    make_endpoint: LocalEndpoint, script: str, runtime: Runtime, printed: str
) -> None:
    runtime.require()
    # The embedding model's name, for LiteLLM's.
    words = ["minilm"] if "litellm" in script else []
    environ = {**ENVIRON, "OPENAI_BASE_URL": make_endpoint.openai_url, "OPENAI_API_KEY": "any"}
    text = (ROOT / "examples" / script).read_text()
    found = printed_by([*runtime.command, *words], environ, runtime.folder, text)
    assert re.fullmatch(printed, found.rstrip("\n"), re.DOTALL), found
