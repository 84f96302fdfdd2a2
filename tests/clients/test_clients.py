"""Third-party clients, unchanged, each in a process of its own, against `make endpoint`."""

import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.models.minilm import DIMENSIONS
from support.processes.clients import answers_of
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
class Client:
    """A program in this folder, and the folder in .clients where its client is installed."""

    program: str
    folder: Path
    interpreter: tuple[str, ...]
    not_found: str = ""  # the error that it raises for an unknown model

    @property
    def installed(self) -> bool:
        found = shutil.which(self.interpreter[0]) is not None
        return found and (self.folder / "installed").is_file()

    def run(self, *arguments: str) -> dict[str, Any]:
        """Run the program; return the answers that it printed as JSON."""
        command = [*self.interpreter, "-", *arguments]
        # From stdin, so that Node looks for packages in the working directory.
        program = (Path(__file__).parent / self.program).read_text()
        return answers_of(command, ENVIRON, self.folder, program)


PYTHON_FOLDER = ROOT / ".clients"
NODE_FOLDER = PYTHON_FOLDER / "node"
PYTHON = (str(PYTHON_FOLDER / "bin" / "python"),)
NODE = ("node", "--input-type=module")
INSTRUCTOR = Client("instructor_chat.py", PYTHON_FOLDER, PYTHON)
LANGCHAIN = Client("langchain_chat.py", PYTHON_FOLDER, PYTHON, "OpenAIModelNotFoundError")
LITELLM = Client("litellm_chat.py", PYTHON_FOLDER, PYTHON, "NotFoundError")
CLIENTS = [
    LANGCHAIN,
    LITELLM,
    Client("openai_chat.mjs", NODE_FOLDER, NODE, "NotFoundError"),
]


Ask = Callable[[Client], dict[str, Any]]
every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.program)
every_python_client = pytest.mark.parametrize(
    "client", [LANGCHAIN, LITELLM], ids=lambda client: client.program
)


@pytest.fixture(scope="session")
def answers_to(make_endpoint: LocalEndpoint) -> Ask:
    """Return the answers that a client got. It runs once for all tests."""

    @functools.cache
    def ask(client: Client) -> dict[str, Any]:
        if not client.installed:
            pytest.skip("its client is not installed: `make test-clients` does, Node's with npm")
        return client.run(make_endpoint.openai_url, "demo")

    return ask


@every_client
def test_a_client_gets_the_whole_answer(client: Client, answers_to: Ask) -> None:
    assert answers_to(client)["whole"].startswith(ANSWER)


@every_client
def test_a_client_streams_the_same_answer_in_many_pieces(client: Client, answers_to: Ask) -> None:
    answers = answers_to(client)
    assert "".join(answers["pieces"]) == answers["whole"]
    assert len([piece for piece in answers["pieces"] if piece]) > 10


@every_client
def test_a_client_raises_its_own_not_found_for_an_unknown_model(
    client: Client, answers_to: Ask
) -> None:
    refusal = answers_to(client)["refusal"]
    assert (refusal["error"], refusal["status"]) == (client.not_found, 404)
    assert "nope" in refusal["message"]


@every_python_client
def test_a_client_calls_a_tool_streamed_and_not(client: Client, answers_to: Ask) -> None:
    for calls in answers_to(client)["calls"]:
        assert [(call["name"], call["args"]) for call in calls] == [("job_status", JOB)]


@every_python_client
def test_a_client_embeds(client: Client, answers_to: Ask) -> None:
    first, second = answers_to(client)["embeddings"]
    assert (len(first), len(second)) == (DIMENSIONS, DIMENSIONS)
    assert first != second


def test_langchain_extracts_by_schema_and_by_tool(answers_to: Ask) -> None:
    assert answers_to(LANGCHAIN)["structured"] == [DESCRIBED, JOB]


def test_the_tokens_that_langchain_sends_by_default_are_not_the_embedders(answers_to: Ask) -> None:
    assert "out of vocabulary" in answers_to(LANGCHAIN)["refusal of tokens"]


def test_instructor_extracts_in_its_modes(answers_to: Ask) -> None:
    extracted = {"tools": JOB, "json schema": DESCRIBED, "json": {}}
    assert answers_to(INSTRUCTOR) == extracted
