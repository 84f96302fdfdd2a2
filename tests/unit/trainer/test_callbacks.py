"""Reports of a training: lines of JSON, and Weights & Biases if the operator has set a key."""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.trainers.real import Attempts, events_of, spec, token_rows

from trainer.output import EventLog
from trainer.training import start_wandb_reporting
from worker import masking
from worker.fine_tunes.spec import EVENTS_FILE

# The used part of the package wandb; it records its calls.
PACKAGE = """
import json, pathlib

def note(*calls):
    with (pathlib.Path(__file__).parent / "calls").open("a") as opened:
        opened.write(json.dumps(calls) + "\\n")

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
def wandb_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a wandb package for one test and set a key; return the file of recorded calls."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "wandb.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("WANDB_API_KEY", "secret-of-wandb")
    yield packages / "calls"
    sys.modules.pop("wandb", None)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=str.upper) for line in path.read_text().splitlines()]


def test_metrics_are_logged_once_and_as_valid_json(tmp_path: Path) -> None:
    logs = {"loss": math.nan, "grad_norm": math.inf, "epoch": 0.5}
    with EventLog(tmp_path / "e", 7) as events:
        events.write("Two\nlines", 7, "warn")
        # Steps are repeated after a fallback to fewer rows.
        for loss in (1.0, 1.5):
            events.write_metrics({"loss": loss}, 8)
            events.write_metrics({"eval_loss": loss}, 8)
        events.write_metrics(logs, 9)
        # Lines are readable while the training runs.
        first, *entries = read_lines(tmp_path / "e")
    assert first == {"resumed_at": 7}
    assert [(one["message"], one["step"], one["level"], one["metrics"]) for one in entries] == [
        ("Two\nlines", 7, "warn", {}),
        ("{'loss': 1.0}", 8, "info", {"loss": 1.0}),
        ("{'eval_loss': 1.0}", 8, "info", {"eval_loss": 1.0}),
        (str(logs), 9, "info", {"epoch": 0.5}),
    ]


def test_metrics_are_reported_to_weights_and_biases(tmp_path: Path, wandb_calls: Path) -> None:
    wandb = {"project": "p", "tags": ["t"], "api_key": "unknown"}
    attempts = Attempts(tmp_path / "ftjob-a", token_rows(8))
    attempts.run("1", spec(tmp_path, epochs=1, wandb=wandb))
    (first, options), *calls = [json.loads(line) for line in wandb_calls.read_text().splitlines()]
    config = options.pop("config")
    assert (first, config["learning_rate"], "model" in config) == ("init", 1e-2, False)
    assert options == {"project": "p", "tags": ["t"], "id": "ftjob-a", "resume": "allow"}
    assert [call[2] for call in calls if call[0] == "log" and "loss" in call[1]] == [1, 2]
    assert calls[-1] == ["finish"]


def warning(tmp_path: Path, project: str) -> str:
    """Return the logged reason why nothing is reported."""
    with EventLog(tmp_path / EVENTS_FILE, 0) as events:
        assert (
            start_wandb_reporting(spec(tmp_path, wandb={"project": project}), "ftjob-a", events)
            == []
        )
    *_, event = events_of(tmp_path)
    assert event["level"] == "warn"
    return str(event["message"]).removeprefix("Nothing is reported to Weights & Biases: ")


@pytest.mark.usefixtures("wandb_calls")
def test_the_reason_of_a_refusal_is_logged_without_keys_and_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    assert warning(tmp_path, "refused") == "no such project"
    assert warning(tmp_path, "quoted") == "the key '***' in ... is none"
    monkeypatch.delenv("WANDB_API_KEY")
    assert warning(tmp_path, "p") == "there is no WANDB_API_KEY"


def test_without_the_package_nothing_is_reported(tmp_path: Path) -> None:
    assert warning(tmp_path, "p") == "the package wandb is not installed"
