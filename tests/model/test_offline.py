"""`LLM`: what it takes, what it answers and what it refuses, by scripts that check it.

They are scripts/generate.py, ids.py and embed.py.
"""

import pytest
from support.processes.offline_scripts import Ended


@pytest.mark.parametrize("script", ["generate", "ids", "embed"])
def test_a_script_finds_no_mistake_and_ends(request: pytest.FixtureRequest, script: str) -> None:
    ended: Ended = request.getfixturevalue(script)
    assert not ended["failed"], "\n".join(ended["failed"].values())
    assert ended.status == 0, ended.stderr


@pytest.mark.parametrize("argument", ["swap_space", "prompt_adapter_request"])
def test_an_argument_without_effect_warns_once(generate: Ended, argument: str) -> None:
    assert generate.stderr.count(f"{argument} has no effect") == 1
