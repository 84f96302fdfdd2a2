"""Fine-tunes with scripts for Scale LLM Engine, each way that they reach a worker."""

import ast
from pathlib import Path
from typing import Any

import pytest
from support.processes.llm_engine import Host

ANSWER = "The red code."


@pytest.fixture(scope="module")
def answers(host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the answers that the script got."""
    folder: Path = tmp_path_factory.mktemp("fine-tunes")
    return host.printed("fine_tunes", cwd=folder)


def test_rows_become_an_adapter_that_answers_by_its_name(answers: dict[str, Any]) -> None:
    trained = answers["trained"]
    found = trained["found"]
    name = found["fine_tuned_model"]
    assert (found["id"], found["status"]) == (trained["id"], "SUCCESS")
    assert name.startswith("demo.my-experiment.")
    assert name in trained["models"]
    assert trained["listed"][0] == trained["id"]
    assert trained["texts"][name] == ANSWER != trained["texts"]["demo"]


def test_events_tell_the_losses_as_its_trainer_does(answers: dict[str, Any]) -> None:
    events = answers["trained"]["events"]
    assert {event["level"] for event in events} <= {"info", "warn"}
    told = [ast.literal_eval(one["message"]) for one in events if one["message"][0] == "{"]
    losses = [one["loss"] for one in told if "loss" in one]
    assert losses[-1] < losses[0]
    assert sum("eval_loss" in one for one in told) >= 3
    assert all(event["timestamp"] for event in events)


def test_its_adapters_are_deleted_as_models(answers: dict[str, Any]) -> None:
    # The best and the other epochs'.
    assert answers["trained"]["deleted"] == [True] * 3


def test_one_is_cancelled_unless_it_has_ended(answers: dict[str, Any]) -> None:
    assert answers["trained"]["late cancel"] is False
    assert answers["cancelled"] == {"success": True, "status": "CANCELLED"}


def test_what_is_wrong_is_refused_with_the_clients_errors(answers: dict[str, Any]) -> None:
    assert answers["no file"]["error"] == "NotFoundError"
    assert answers["no name"]["error"] == "BadRequestError"
    assert "did you mean 'hyperparameters.epochs'?" in answers["no name"]["message"]
