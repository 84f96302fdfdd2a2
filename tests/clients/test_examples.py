"""Examples whose client is in .clients, or that need an adapter, in front of `make endpoint`."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from clients.test_clients import ENVIRON, NODE, NODE_FOLDER, PYTHON, PYTHON_FOLDER
from demo_model import ANSWERS
from support import ROOT
from support.models.minilm import DIMENSIONS
from support.processes.clients import CLIENT_S
from support.processes.local_endpoint import LocalEndpoint

EXAMPLES = ROOT / "examples"
COUNT = re.escape(ANSWERS["Count to ten."])
AGENTS_FOLDER = PYTHON_FOLDER / "openai-agents"
AGENTS = (str(AGENTS_FOLDER / "bin" / "python"),)
DONE = r"Yes, job 42 is done: its status is COMPLETED\."


@dataclass(frozen=True)
class Example:
    """A script, what runs it, and what it prints."""

    script: str
    command: tuple[str, ...]
    folder: Path  # where its client is installed
    printed: str
    words: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        found = shutil.which(self.command[0]) is not None
        return found and (self.folder / "installed").is_file()


TABLE = [
    Example(
        "frameworks/ai_sdk_chat.mjs",
        NODE,
        NODE_FOLDER,
        rf'{COUNT}\njob_status \{{"job_id":"42"\}}\n{DONE}',
    ),
    Example(
        "frameworks/langchain_chat.py",
        PYTHON,
        PYTHON_FOLDER,
        rf"{COUNT}\nname='demo' streams=True chunks=\[1, 3, 9, 27\]\n"
        r"job_status \{'job_id': '42'\}",
    ),
    Example(
        "frameworks/litellm_chat.py",
        PYTHON,
        PYTHON_FOLDER,
        rf"{COUNT}\n\[{DIMENSIONS}, {DIMENSIONS}\]",
        ("minilm",),
    ),
    # It describes the tool with more words than the model has learnt: its last answer is a guess.
    Example("frameworks/openai_agent.py", AGENTS, AGENTS_FOLDER, r"called with 42\n.+"),
    Example(
        "gateway/openai_adapter.py",
        (sys.executable,),
        Path(sys.prefix),
        r"adapters: .*\blisted\b.*\ndemo:(.+)\n(?!demo)[\w.-]+:(?!\1\n).+",
    ),
]


@pytest.mark.parametrize("example", TABLE, ids=lambda example: example.script)
def test_an_example_prints_what_it_should(example: Example, make_endpoint: LocalEndpoint) -> None:
    if not example.installed:
        pytest.skip("its client is not installed: `make test-clients` does, Node's with npm")
    # From stdin, so that Node looks for packages in the working directory.
    ran = subprocess.run(
        [*example.command, "-", *example.words],
        cwd=example.folder,
        env={
            **ENVIRON,
            "PATH": os.environ["PATH"],
            "OPENAI_BASE_URL": make_endpoint.openai_url,
            "OPENAI_API_KEY": "any",
        },
        input=(EXAMPLES / example.script).read_text(),
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(example.printed, ran.stdout.rstrip("\n"), re.DOTALL), ran.stdout
