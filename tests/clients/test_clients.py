"""Tests with unchanged third-party clients, each in its own process, and `make endpoint`."""

import functools
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
from support.clients import (
    ENVIRON,
    PYTHON_CLIENTS,
    client_answers,
    client_folder,
    npm_folder,
    require_installed,
    run_client,
)
from support.models.minilm import DIMENSIONS
from support.processes.servers import KEY, LocalEndpoint, http_worker

ANSWER = "This worker turns a Hugging Face model into a serverless endpoint."
JOB = {"job_id": "42"}
DESCRIPTION = {"name": "demo", "streams": True, "chunks": [1, 3, 9, 27]}


@dataclass(frozen=True)
class Runtime:
    """A command that runs programs, and the directory of its installed client."""

    folder: Path
    command: tuple[str, ...]

    def require(self) -> None:
        """Skip the test if the runtime or its client is not installed."""
        require_installed(self.folder)
        if shutil.which(self.command[0]) is None:
            pytest.skip("there is no Node")


AGENTS_SDK = client_folder("openai-agents")
PYTHON = Runtime(PYTHON_CLIENTS, (str(PYTHON_CLIENTS / "bin" / "python"), "-"))
AGENTS = Runtime(AGENTS_SDK, (str(AGENTS_SDK / "bin" / "python"), "-"))
NODE = Runtime(npm_folder("node"), ("node", "--input-type=module", "-"))
OWN = Runtime(Path(sys.prefix), (sys.executable, "-"))

PYTHON_PROGRAM, OPENAI = "python_clients.py", "openai_chat.mjs"

RunProgram = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def run_program(make_endpoint: LocalEndpoint) -> RunProgram:
    """Return a function that runs a program once per session and returns the program's results."""

    @functools.cache
    def run(program: str) -> dict[str, Any]:
        runtime = NODE if program == OPENAI else PYTHON
        runtime.require()
        command = [*runtime.command, make_endpoint.openai_url, "demo"]
        # The program is passed on stdin, so that Node searches packages in the working directory.
        text = (Path(__file__).parent / "programs" / program).read_text()
        return client_answers(command, ENVIRON, runtime.folder, text)

    return run


def check_not_found(refusal: dict[str, Any], error: str) -> None:
    """Check that a client raises its own exception for an unknown model."""
    assert (refusal["error"], refusal["status"]) == (error, 404)
    assert "nope" in refusal["message"]


def test_nodes_client_streams_the_whole_answer_in_pieces(run_program: RunProgram) -> None:
    answers = run_program(OPENAI)
    assert answers["whole"].startswith(ANSWER)
    assert "".join(answers["pieces"]) == answers["whole"]
    # The number depends on the machine, because vLLM merges tokens that are not read immediately.
    assert len([piece for piece in answers["pieces"] if piece]) > 1
    check_not_found(answers["refusal"], "NotFoundError")


def test_langchain_calls_tools_extracts_data_and_embeds_texts(run_program: RunProgram) -> None:
    answers = run_program(PYTHON_PROGRAM)["langchain"]
    assert (answers["calls"], answers["structured"]) == ([["job_status", JOB]], JOB)
    first, second = answers["embeddings"]
    assert (len(first), len(second), first != second) == (DIMENSIONS, DIMENSIONS, True)
    # By default, the client sends tokens of another tokenizer.
    assert "out of vocabulary" in answers["refusal of tokens"]["message"]
    check_not_found(answers["refusal"], "OpenAIModelNotFoundError")


def test_litellm_assembles_a_streamed_tool_call(run_program: RunProgram) -> None:
    answers = run_program(PYTHON_PROGRAM)["litellm"]
    assert answers["calls"] == [["job_status", JOB]]
    check_not_found(answers["refusal"], "NotFoundError")


def test_instructor_extracts_data_in_both_modes(run_program: RunProgram) -> None:
    extracted = {"tools": JOB, "json schema": DESCRIPTION}
    assert run_program(PYTHON_PROGRAM)["instructor"] == extracted


def test_guidance_constrains_an_answer_to_its_grammar(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    PYTHON.require()
    # guidance's grammars have a syntax of their own.
    settings = {"STRUCTURED_OUTPUTS_CONFIG": '{"backend": "guidance"}', "SERVE_API_KEY": KEY}
    program = (Path(__file__).parent / "programs" / "guidance_calls.py").read_text()
    with http_worker({**worker_environ, **settings}, tmp_path / "log") as worker:
        command = [*PYTHON.command, f"{worker.url}/v1", KEY, "demo"]
        answers = client_answers(command, ENVIRON, PYTHON.folder, program)
    assert answers["choice"] in {"Ticket ochre", "Ticket umber"}
    assert re.fullmatch("Ticket [0-9]{3}-[0-9]{2}", answers["regex"])


# Examples that need a client of `nox -s clients` or an adapter:

COUNT = re.escape(ANSWERS["Count to ten."])
WORKER = r"name='demo' streams=True chunks=\[1, 3, 9, 27\]"
TOOL_CALL = r"job_status \{'job_id': '42'\}"
TOOL_ANSWER = r"Yes, job 42 is done: its status is COMPLETED\."
ADAPTERS = r"adapters: .*\blisted\b.*\ndemo:(.+)\n(?!demo)[\w.-]+:(?!\1\n).+"


@pytest.mark.parametrize(
    ("script", "runtime", "expected_output"),
    [
        (
            "frameworks/ai_sdk_chat.mjs",
            NODE,
            rf'{COUNT}\njob_status \{{"job_id":"42"\}}\n{TOOL_ANSWER}',
        ),
        ("frameworks/langchain_chat.py", PYTHON, rf"{COUNT}\n{WORKER}\n{TOOL_CALL}"),
        ("frameworks/litellm_chat.py", PYTHON, rf"{COUNT}\n\[{DIMENSIONS}, {DIMENSIONS}\]"),
        # The tool's description is longer than the learned one, so the model's last answer varies.
        ("frameworks/openai_agent.py", AGENTS, r"called with 42\n.+"),
        ("gateway/openai_adapter.py", OWN, ADAPTERS),
    ],
)
def test_an_example_prints_the_expected_output(
    make_endpoint: LocalEndpoint, script: str, runtime: Runtime, expected_output: str
) -> None:
    runtime.require()
    # The name of the embedding model, for the LiteLLM example.
    words = ["minilm"] if "litellm" in script else []
    environ = {**ENVIRON, "OPENAI_BASE_URL": make_endpoint.openai_url, "OPENAI_API_KEY": "any"}
    text = (ROOT / "examples" / script).read_text()
    found = run_client([*runtime.command, *words], environ, runtime.folder, text)
    assert re.fullmatch(expected_output, found.rstrip("\n"), re.DOTALL), found
