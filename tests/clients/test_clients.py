"""Clients by others, used as they come, each in a process of its own, against `make endpoint`."""

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.models.minilm import DIMENSIONS
from support.processes.served import Served

ANSWER = "This worker turns a Hugging Face model into a serverless endpoint."
JOB = {"job_id": "42"}
DESCRIBED = {"name": "demo", "streams": True, "chunks": [1, 3, 9, 27]}
CLIENT_S = 60  # a client's process takes two to seven seconds on an idle machine
TOKENIZERS = "lib/python*/site-packages/litellm/litellm_core_utils/tokenizers"
ENVIRON = {
    "PATH": os.environ["PATH"],
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # LiteLLM fetches its price list when imported
    "LITELLM_MODE": "PRODUCTION",  # and reads the .env of whoever runs the tests
    # LangChain fetches the tokens of OpenAI's models where it does not find them.
    "TIKTOKEN_CACHE_DIR": "".join(map(str, (ROOT / ".clients").glob(TOKENIZERS))),
}


@dataclass(frozen=True)
class Client:
    """A client's program, and the folder in .clients where the client is installed."""

    program: str
    folder: Path
    interpreter: tuple[str, ...]
    not_found: str = ""  # what it raises where there is no such model

    @property
    def installed(self) -> bool:
        found = shutil.which(self.interpreter[0]) is not None
        return found and (self.folder / "installed").is_file()

    def run(self, *arguments: str) -> dict[str, Any]:
        # The program comes on stdin: Node looks for packages from its folder then, not from where
        # the program lies.
        ran = subprocess.run(
            [*self.interpreter, "-", *arguments],
            cwd=self.folder,
            env=ENVIRON,
            input=(Path(__file__).parent / self.program).read_text(),
            capture_output=True,
            text=True,
            timeout=CLIENT_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        seen: dict[str, Any] = json.loads(ran.stdout)
        return seen


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
of_each = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.program)
of_pythons = pytest.mark.parametrize("client", [LANGCHAIN, LITELLM], ids=lambda it: it.program)


@pytest.fixture(scope="session")
def seen_by(make_endpoint: Served) -> Ask:
    """What a client got, asked once for all tests."""

    @functools.cache
    def ask(client: Client) -> dict[str, Any]:
        if not client.installed:
            pytest.skip("its client is not installed: `make test-clients` does, Node's with npm")
        return client.run(make_endpoint.openai_url, "demo")

    return ask


@of_each
def test_a_client_gets_the_whole_answer(client: Client, seen_by: Ask) -> None:
    assert seen_by(client)["whole"].startswith(ANSWER)


@of_each
def test_a_client_streams_the_same_answer_in_many_pieces(client: Client, seen_by: Ask) -> None:
    seen = seen_by(client)
    assert "".join(seen["pieces"]) == seen["whole"]
    assert len([piece for piece in seen["pieces"] if piece]) > 10


@of_each
def test_a_client_raises_its_own_not_found_for_an_unknown_model(
    client: Client, seen_by: Ask
) -> None:
    refusal = seen_by(client)["refusal"]
    assert (refusal["error"], refusal["status"]) == (client.not_found, 404)
    assert "nope" in refusal["message"]


@of_pythons
def test_a_client_calls_a_tool_streamed_and_not(client: Client, seen_by: Ask) -> None:
    for calls in seen_by(client)["calls"]:
        assert [(call["name"], call["args"]) for call in calls] == [("job_status", JOB)]


@of_pythons
def test_a_client_embeds(client: Client, seen_by: Ask) -> None:
    first, second = seen_by(client)["embeddings"]
    assert (len(first), len(second)) == (DIMENSIONS, DIMENSIONS)
    assert first != second


def test_langchain_extracts_by_schema_and_by_tool(seen_by: Ask) -> None:
    assert seen_by(LANGCHAIN)["structured"] == [DESCRIBED, JOB]


def test_the_tokens_that_langchain_sends_by_default_are_not_the_embedders(seen_by: Ask) -> None:
    assert "out of vocabulary" in seen_by(LANGCHAIN)["refusal of tokens"]


def test_instructor_extracts_in_its_modes(seen_by: Ask) -> None:
    extracted = {"tools": JOB, "json schema": DESCRIBED, "json": {}}
    assert seen_by(INSTRUCTOR) == extracted
