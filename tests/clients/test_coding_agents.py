"""Tests of Claude Code and Codex, started by their examples, with `make endpoint`.

Their requests are larger than the demo model's context, so the model is served with a longer
context.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT
from support.clients import npm_folder, require_installed, run_client
from support.models.configs import copy_with_long_context
from support.processes.background import wait_until
from support.processes.servers import READY, LocalEndpoint, local_endpoint

AGENTS_FOLDER = npm_folder("coding-agents")


@pytest.fixture(scope="module")
def coding_endpoint(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalEndpoint]:
    require_installed(AGENTS_FOLDER)
    folder = tmp_path_factory.mktemp("agents")
    model = copy_with_long_context(Path(worker_environ["MODEL_NAME"]), folder / "demo")
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={folder}"]
    tools = {"ENABLE_AUTO_TOOL_CHOICE": "1", "TOOL_CALL_PARSER": "hermes"}
    environ = {**worker_environ, **tools, "MODEL_NAME": str(model), "BASE_PATH": str(folder)}
    with local_endpoint(command, environ, folder / "output") as running:
        running.wait_for_output(READY)
        yield running


# The example, the route that its agent calls, and the minimum number of prompt tokens.
@pytest.mark.parametrize(
    ("script", "route", "min_tokens"),
    [("claude_code.sh", "/v1/messages", 20_000), ("codex.sh", "/v1/responses", 15_000)],
)
def test_the_endpoint_answers_the_first_request_of_an_agent(
    script: str, route: str, min_tokens: int, coding_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    environ = {
        "PATH": f"{AGENTS_FOLDER / 'node_modules' / '.bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "ANTHROPIC_BASE_URL": f"{coding_endpoint.url}/openai",
        "ANTHROPIC_AUTH_TOKEN": "any",
        "OPENAI_BASE_URL": coding_endpoint.openai_url,
        "OPENAI_API_KEY": "any",
        # Otherwise the agent also sends requests to its vendor.
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    command = ["bash", str(ROOT / "examples" / "coding-agents" / script)]
    assert len(run_client(command, environ, tmp_path, program="").split()) > 1
    (worker,) = coding_endpoint.log.parent.glob("worker-*.log")
    # The worker logs the line when the job has ended, soon after the last event.
    line = rf"route={route} status=\d+ prompt_tokens=(\d+)"
    wait_until(lambda: re.search(line, worker.read_text()))
    assert max(map(int, re.findall(line, worker.read_text()))) > min_tokens
