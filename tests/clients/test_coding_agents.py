"""Claude Code and Codex, started by their examples, in front of `make endpoint`.

What they send is larger than the demo model's context, so it is served with a longer one, in which
it has learnt nothing: the answers are sentences of its own.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT
from support.clients.scripts import printed_by, require_installed
from support.processes.background import wait_until
from support.processes.local_endpoint import READY, LocalEndpoint, local_endpoint

INSTALLED = ROOT / ".clients" / "coding-agents"
CONTEXT = 131_072


@pytest.fixture(scope="module")
def coding_endpoint(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalEndpoint]:
    require_installed(INSTALLED)
    folder = tmp_path_factory.mktemp("agents")
    model = folder / "demo"
    shutil.copytree(worker_environ["MODEL_NAME"], model)
    for name, key in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        written = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**written, key: CONTEXT}))
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={folder}"]
    tools = {"ENABLE_AUTO_TOOL_CHOICE": "1", "TOOL_CALL_PARSER": "hermes"}
    environ = {**worker_environ, **tools, "MODEL_NAME": str(model), "BASE_PATH": str(folder)}
    with local_endpoint(command, environ, folder / "output") as running:
        running.wait_for_output(READY)
        yield running


# The example, the route that its agent calls, and at least how many tokens it sends.
@pytest.mark.parametrize(
    ("script", "route", "least"),
    [("claude_code.sh", "/v1/messages", 20_000), ("codex.sh", "/v1/responses", 15_000)],
)
def test_an_agents_first_request_is_answered_by_the_endpoint(
    script: str, route: str, least: int, coding_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    environ = {
        "PATH": f"{INSTALLED / 'node_modules' / '.bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "ANTHROPIC_BASE_URL": f"{coding_endpoint.url}/openai",
        "ANTHROPIC_AUTH_TOKEN": "any",
        "OPENAI_BASE_URL": coding_endpoint.openai_url,
        "OPENAI_API_KEY": "any",
        # Or it also asks hosts of its maker.
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    command = ["bash", str(ROOT / "examples" / "coding-agents" / script)]
    assert len(printed_by(command, environ, tmp_path, program="").split()) > 1
    (worker,) = coding_endpoint.log.parent.glob("worker-*.log")
    # The line comes when the job has ended, soon after its last event.
    line = rf"route={route} status=\d+ prompt_tokens=(\d+)"
    wait_until(lambda: re.search(line, worker.read_text()))
    assert max(map(int, re.findall(line, worker.read_text()))) > least
