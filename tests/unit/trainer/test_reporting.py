"""A training is reported to Weights & Biases where its operator can, and goes on where not."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.trainer import Attempts, events_of, spec, token_rows

from worker import masking
from worker.trainer.events import Events
from worker.trainer.reporting import reporting
from worker.trainer.spec import EVENTS

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


def test_the_numbers_are_reported(tmp_path: Path, package: Path) -> None:
    wandb = {"project": "p", "tags": ["t"], "api_key": "unknown"}
    attempts = Attempts(tmp_path / "ftjob-a", token_rows(8))
    attempts.run("1", spec(tmp_path, epochs=1, wandb=wandb))
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


def warning(tmp_path: Path, project: str) -> str:
    """Return why nothing is reported."""
    with Events(tmp_path / EVENTS, 0) as events:
        assert reporting(spec(tmp_path, wandb={"project": project}), "ftjob-a", events) == []
    *_, event = events_of(tmp_path)
    assert event["level"] == "warn"
    return str(event["message"]).removeprefix("Nothing is reported to Weights & Biases: ")


@pytest.mark.usefixtures("package")
def test_the_reason_of_a_refusal_is_a_warning_without_keys_and_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    assert warning(tmp_path, "refused") == "no such project"
    assert warning(tmp_path, "quoted") == "the key '***' in ... is none"
    monkeypatch.delenv("WANDB_API_KEY")
    assert warning(tmp_path, "p") == "there is no WANDB_API_KEY"


def test_without_the_package_nothing_is_reported(tmp_path: Path) -> None:
    assert warning(tmp_path, "p") == "the package wandb is not installed"
