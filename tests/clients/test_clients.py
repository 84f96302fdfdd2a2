"""Third-party clients, unchanged, each in a process of its own, against `make endpoint`."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from demo_model import ANSWERS
from support import ROOT
from support.models.minilm import DIMENSIONS
from support.processes.clients import CLIENT_S, answers_of, require_installed
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

LANGCHAIN, LITELLM = "langchain_chat.py", "litellm_chat.py"
PROGRAMS = {
    LANGCHAIN: PYTHON,
    LITELLM: PYTHON,
    "openai_chat.mjs": NODE,
    "instructor_chat.py": PYTHON,
}
# Their own errors for an unknown model.
NOT_FOUND = {
    LANGCHAIN: "OpenAIModelNotFoundError",
    LITELLM: "NotFoundError",
    "openai_chat.mjs": "NotFoundError",
}

Ask = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def answers_to(make_endpoint: LocalEndpoint) -> Ask:
    """Return the answers that a client got. It runs once for all tests."""

    @functools.cache
    def ask(client: str) -> dict[str, Any]:
        runtime = PROGRAMS[client]
        runtime.require()
        command = [*runtime.command, make_endpoint.openai_url, "demo"]
        # From stdin, so that Node looks for packages in the working directory.
        program = (Path(__file__).parent / client).read_text()
        return answers_of(command, ENVIRON, runtime.folder, program)

    return ask


def test_nodes_client_streams_the_whole_answer_in_many_pieces(answers_to: Ask) -> None:
    answers = answers_to("openai_chat.mjs")
    assert answers["whole"].startswith(ANSWER)
    assert "".join(answers["pieces"]) == answers["whole"]
    assert len([piece for piece in answers["pieces"] if piece]) > 10


@pytest.mark.parametrize("client", NOT_FOUND)
def test_a_client_raises_its_own_not_found_for_an_unknown_model(
    client: str, answers_to: Ask
) -> None:
    refusal = answers_to(client)["refusal"]
    assert (refusal["error"], refusal["status"]) == (NOT_FOUND[client], 404)
    assert "nope" in refusal["message"]


@pytest.mark.parametrize("client", [LANGCHAIN, LITELLM])
def test_a_client_calls_a_tool(client: str, answers_to: Ask) -> None:
    for calls in answers_to(client)["calls"]:
        assert [(call["name"], call["args"]) for call in calls] == [("job_status", JOB)]


def test_langchain_embeds(answers_to: Ask) -> None:
    first, second = answers_to(LANGCHAIN)["embeddings"]
    assert (len(first), len(second)) == (DIMENSIONS, DIMENSIONS)
    assert first != second


def test_langchain_extracts_by_a_tool(answers_to: Ask) -> None:
    assert answers_to(LANGCHAIN)["structured"] == JOB


def test_the_tokens_that_langchain_sends_by_default_are_not_the_embedders(answers_to: Ask) -> None:
    assert "out of vocabulary" in answers_to(LANGCHAIN)["refusal of tokens"]


def test_instructor_extracts_in_its_modes(answers_to: Ask) -> None:
    extracted = {"tools": JOB, "json schema": DESCRIBED, "json": {}}
    assert answers_to("instructor_chat.py") == extracted


# Examples whose client is in .clients, or that need an adapter:

COUNT = re.escape(ANSWERS["Count to ten."])
CALLED = r"job_status \{'job_id': '42'\}"
DONE = r"Yes, job 42 is done: its status is COMPLETED\."
ADAPTERS = r"adapters: .*\blisted\b.*\ndemo:(.+)\n(?!demo)[\w.-]+:(?!\1\n).+"


@pytest.mark.parametrize(
    ("script", "runtime", "words", "printed"),
    [
        (
            "frameworks/ai_sdk_chat.mjs",
            NODE,
            [],
            rf'{COUNT}\njob_status \{{"job_id":"42"\}}\n{DONE}',
        ),
        (
            f"frameworks/{LANGCHAIN}",
            PYTHON,
            [],
            rf"{COUNT}\nname='demo' streams=True chunks=\[1, 3, 9, 27\]\n{CALLED}",
        ),
        (
            f"frameworks/{LITELLM}",
            PYTHON,
            ["minilm"],
            rf"{COUNT}\n\[{DIMENSIONS}, {DIMENSIONS}\]",
        ),
        # It describes the tool with more words than the model has learnt: the last is a guess.
        ("frameworks/openai_agent.py", AGENTS, [], r"called with 42\n.+"),
        ("gateway/openai_adapter.py", OWN, [], ADAPTERS),
    ],
)
def test_an_example_prints_what_it_should(
    make_endpoint: LocalEndpoint, script: str, runtime: Runtime, words: list[str], printed: str
) -> None:
    runtime.require()
    ran = subprocess.run(
        [*runtime.command, *words],
        cwd=runtime.folder,
        env={**ENVIRON, "OPENAI_BASE_URL": make_endpoint.openai_url, "OPENAI_API_KEY": "any"},
        input=(ROOT / "examples" / script).read_text(),
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(printed, ran.stdout.rstrip("\n"), re.DOTALL), ran.stdout
