"""What a training tells is one line of JSON each, whatever the numbers are."""

import json
from pathlib import Path

from worker.trainer.events import Events
from worker.trainer.spec import Event, Resumed


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_the_first_line_is_the_step_that_the_attempt_goes_on_from(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Events(path, 7) as events:
        assert Resumed.model_validate_json(lines(path)[0]).resumed_at == 7
        events.tell("Two\nlines", 7, "warn")
        told = Event.model_validate_json(lines(path)[1])
    assert (told.message, told.step, told.level, told.metrics) == ("Two\nlines", 7, "warn", {})


def test_metrics_are_told_as_the_trainer_logs_them(tmp_path: Path) -> None:
    logs = {"loss": 0.5, "grad_norm": 1.25, "learning_rate": 2e-3, "epoch": 0.5}
    with Events(tmp_path / "e", 0) as events:
        events.tell_metrics(logs, 3)
    told = Event.model_validate_json(lines(tmp_path / "e")[1])
    assert (told.message, told.step, told.metrics) == (str(logs), 3, logs)


def test_a_number_that_json_does_not_have_stands_in_the_message_only(tmp_path: Path) -> None:
    with Events(tmp_path / "e", 0) as events:
        events.tell_metrics({"loss": float("nan"), "grad_norm": float("inf"), "epoch": 1.0}, 1)
    line = lines(tmp_path / "e")[1]
    told = json.loads(line, parse_constant=lambda name: f"not JSON: {name}")
    assert told["metrics"] == {"epoch": 1.0}
    assert told["message"] == "{'loss': nan, 'grad_norm': inf, 'epoch': 1.0}"


def test_steps_that_are_done_again_are_told_once(tmp_path: Path) -> None:
    with Events(tmp_path / "e", 0) as events:
        for loss in (1.0, 1.5):
            events.tell_metrics({"loss": loss}, 1)
            events.tell_metrics({"eval_loss": loss}, 1)
        events.tell_metrics({"loss": 0.5}, 2)
    told = [json.loads(line)["metrics"] for line in lines(tmp_path / "e")[1:]]
    assert told == [{"loss": 1.0}, {"eval_loss": 1.0}, {"loss": 0.5}]
