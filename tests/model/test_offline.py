"""Tests of `LLM` by scripts that check its arguments, results and refusals.

The scripts are scripts/generate.py, ids.py and embed.py.
"""

import pytest
from support.processes.offline_scripts import ScriptResult


@pytest.mark.parametrize("script", ["generate", "ids", "embed"])
def test_a_script_passes_its_checks_and_exits(request: pytest.FixtureRequest, script: str) -> None:
    ended: ScriptResult = request.getfixturevalue(script)
    assert not ended["failed"], "\n".join(ended["failed"].values())
    assert ended.status == 0, ended.stderr


@pytest.mark.parametrize("argument", ["swap_space", "prompt_adapter_request"])
def test_an_argument_without_effect_warns_once(generate: ScriptResult, argument: str) -> None:
    assert generate.stderr.count(f"{argument} has no effect") == 1
