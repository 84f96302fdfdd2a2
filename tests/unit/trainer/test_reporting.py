"""A training is reported to Weights & Biases where its operator can, and goes on where not."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.trainer import Attempts, events_of, spec, token_rows

from worker import masking

# The part of their package that is used; it writes down how it is called.
PACKAGE = """
import json, pathlib

def note(*said):
    with (pathlib.Path(__file__).parent / "said").open("a") as opened:
        opened.write(json.dumps(said) + "\\n")

class errors:
    class Error(Exception):
        pass

class Run:
    def log(self, numbers, step):
        note("log", numbers, step)

    def finish(self):
        note("finish")

def init(**how):
    if how.get("project") == "refused":
        raise errors.Error("no such project")
    if how.get("project") == "quoted":
        raise errors.Error("the key 'secret-of-wandb' in /root/.netrc is none")
    note("init", how)
    return Run()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package, for one test, and give a key; return what it writes."""
    place = tmp_path / "packages"
    place.mkdir()
    (place / "wandb.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("WANDB_API_KEY", "secret-of-wandb")
    yield place / "said"
    sys.modules.pop("wandb", None)


def trained(tmp_path: Path, wandb: dict[str, Any]) -> list[str]:
    """Train, and return what was told."""
    attempts = Attempts(tmp_path / "ftjob-a", token_rows(8))
    attempts.run("1", spec(tmp_path, epochs=1, wandb=wandb))
    return [event["message"] for event in events_of(attempts.directory / "1")]


def test_the_numbers_are_reported(tmp_path: Path, package: Path) -> None:
    trained(tmp_path, {"project": "p", "tags": ["t"], "api_key": "unknown"})
    said = [json.loads(line) for line in package.read_text().splitlines()]
    how = said[0][1]
    assert said[0][0] == "init"
    assert (how["project"], how["tags"], how["id"], how["resume"]) == (
        *("p", ["t"]),
        *("ftjob-a", "allow"),
    )
    assert "api_key" not in how
    assert how["config"]["learning_rate"] == 1e-2
    assert str(tmp_path) not in json.dumps(how)
    steps = [call for call in said if call[0] == "log" and "loss" in call[1]]
    assert [step for _, _, step in steps] == [1, 2]
    assert said[-1] == ["finish"]


def test_one_that_is_refused_is_told(tmp_path: Path, package: Path) -> None:
    told = trained(tmp_path, {"project": "refused"})
    assert told[0] == "Nothing is reported to Weights & Biases: no such project"


def test_why_one_is_refused_is_told_without_the_key_and_paths(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    told = trained(tmp_path, {"project": "quoted"})
    assert told[0] == "Nothing is reported to Weights & Biases: the key '***' in ... is none"


def test_without_a_key_that_is_told(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    told = trained(tmp_path, {"project": "p"})
    assert told[0] == "Nothing is reported to Weights & Biases: there is no WANDB_API_KEY"


def test_without_the_package_that_is_told(tmp_path: Path) -> None:
    told = trained(tmp_path, {"project": "p"})
    expected = "Nothing is reported to Weights & Biases: the package wandb is not installed"
    assert told[0] == expected
