"""The command that proves the worker at RunPod, against emulators with real workers.

``WRITE_PLATFORM_FACTS=1 .venv/bin/python -m pytest tests/platform/proof`` records the emulator's
behaviour, with which the command compares the platform's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.processes.background import pids_with_variable
from support.processes.commands import HOME
from support.runpod_api.emulated import VOLUME, demo_environ, emulated_runpod
from support.runpod_api.endpoints import Body
from support.runpod_api.server import KEY

from proof.platform.steps import STEPS

WRITE = "WRITE_PLATFORM_FACTS"
FACTS = ROOT / "src" / "proof" / "platform" / "emulator.json"
# A variable that the workers inherit.
RUN_VARIABLE = "WORKERS_OF_PROOF"

pytestmark = pytest.mark.usefixtures("demo_model")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_emulator_behaves_as_the_report_says_and_nothing_is_left(tmp_path: Path) -> None:
    def environ(endpoint: Body) -> dict[str, str]:
        return {**demo_environ(endpoint), RUN_VARIABLE: str(tmp_path)}

    command = [sys.executable, "-m", "proof.platform", "--image", "any/image:1", "--yes"]
    with emulated_runpod(tmp_path, environ=environ) as platform:
        urls = ["--api-url", f"{platform.url}/v2", "--queue-url", platform.queue_url]
        variables = {**HOME, "PYTHONPATH": str(ROOT / "src"), "RUNPOD_API_KEY": KEY}
        output = tmp_path / "report"
        options = [*urls, "--volume", VOLUME, "--output", str(output)]
        ran = subprocess.run(
            [*command, *options], env=variables, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, platform.endpoints, platform.fleets) == (0, {}, {}), ran.stderr
    assert pids_with_variable(RUN_VARIABLE, str(tmp_path)) == []
    page, content = ((output / name).read_text() for name in ("README.md", "result.json"))
    assert KEY not in page + content + ran.stderr + ran.stdout
    rows = {row["observation"]: row for row in json.loads(content)["rows"]}
    assert [*rows] == ["deployment", *(step.name for step in STEPS)]
    facts = {name: row["platform"] for name, row in rows.items()}
    if WRITE in os.environ:
        FACTS.write_text(json.dumps(facts, indent=2) + "\n")
    assert facts == json.loads(FACTS.read_text()), f"set {WRITE}=1 to write {FACTS.name}"
    sys.stdout.write(page)
