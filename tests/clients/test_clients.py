"""Clients by others, used as they come, each in a process of its own, against `make endpoint`."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from served import Served

ROOT = Path(__file__).parents[2]
ANSWER = "This worker turns a Hugging Face model into a serverless endpoint."
CLIENT_S = 60  # a client's process takes two to seven seconds on an idle machine
ENVIRON = {
    "PATH": os.environ["PATH"],
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # LiteLLM fetches its price list when imported
    "LITELLM_MODE": "PRODUCTION",  # and reads the .env of whoever runs the tests
}


@dataclass(frozen=True)
class Client:
    """A client's program, and the folder in .clients where the client is installed."""

    program: str
    folder: Path
    interpreter: tuple[str, ...]
    not_found: str  # what it raises where there is no such model

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
CLIENTS = [
    Client("langchain_chat.py", PYTHON_FOLDER, PYTHON, "OpenAIModelNotFoundError"),
    Client("litellm_chat.py", PYTHON_FOLDER, PYTHON, "NotFoundError"),
    Client("openai_chat.mjs", NODE_FOLDER, NODE, "NotFoundError"),
]


@pytest.fixture(scope="session", params=CLIENTS, ids=lambda client: client.program)
def client(request: pytest.FixtureRequest) -> Client:
    client: Client = request.param
    if not client.installed:
        pytest.skip("its client is not installed: `make test-clients` does, Node's if there is npm")
    return client


@pytest.fixture(scope="session")
def seen(client: Client, make_endpoint: Served) -> dict[str, Any]:
    """What a client got, asked once for all tests."""
    return client.run(make_endpoint.openai_url, "demo")


def test_a_client_gets_the_whole_answer(seen: dict[str, Any]) -> None:
    assert seen["whole"].startswith(ANSWER)


def test_a_client_streams_the_same_answer_in_many_pieces(seen: dict[str, Any]) -> None:
    assert "".join(seen["pieces"]) == seen["whole"]
    assert len([piece for piece in seen["pieces"] if piece]) > 10


def test_a_client_raises_its_own_not_found_for_an_unknown_model(
    client: Client, seen: dict[str, Any]
) -> None:
    refusal = seen["refusal"]
    assert (refusal["error"], refusal["status"]) == (client.not_found, 404)
    assert "`nope` does not exist" in refusal["message"]
