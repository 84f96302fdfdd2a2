"""Fine-tunes as the two clients ask for them and read them: what their routes' tests leave out."""

import time
from pathlib import Path
from typing import Any

import pytest
from openai.types.fine_tuning import FineTuningJob
from support.engine.scripted import settings
from support.told import created, loss, tell

from worker.errors import InvalidInput
from worker.fine_tunes.faces import llm_engine, openai
from worker.fine_tunes.request import Result
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import FineTunes
from worker.trainer.spec import ATTEMPTS, CHECKED, Checked

ASKED = {"model": "demo", "training_file": "file-a"}


@pytest.fixture
def fine_tunes(tmp_path: Path) -> FineTunes:
    return FineTunes.of(settings(FILES_PATH=str(tmp_path)))


def run(fine_tune: FineTune) -> None:
    lease = fine_tune.leases() / "lease-1"
    lease.parent.mkdir(parents=True)
    lease.touch()
    fine_tune.write(f"{ATTEMPTS}/000001.aa/{CHECKED}", Checked(rows=3))


def test_an_integration_is_shown_as_openais_client_reads_it(fine_tunes: FineTunes) -> None:
    told = {"project": "p", "tags": ["a"]}
    job = FineTuningJob.model_validate(openai.job(created(fine_tunes, wandb=told)))
    assert job.integrations
    assert job.integrations[0].type == "wandb"
    assert (job.integrations[0].wandb.project, job.integrations[0].wandb.tags) == ("p", ["a"])


def test_the_end_of_what_runs_is_estimated_from_its_pace(
    fine_tunes: FineTunes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Five epochs; each takes a hundred seconds.
    fine_tune = created(fine_tunes)
    tell(fine_tune, [loss(10, 3, at=1000), loss(20, 2, at=1100)])
    assert openai.job(fine_tune)["estimated_finish"] is None
    run(fine_tune)
    monkeypatch.setattr(time, "time", lambda: 1150.0)
    assert openai.job(fine_tune)["estimated_finish"] == 1150 + 3 * 100
    fine_tune.end(Result(status="cancelled", at=1200))
    assert openai.job(fine_tune)["estimated_finish"] is None


@pytest.mark.parametrize("told", [[], [loss(10, 3)], [loss(10, 3), loss(10, 2, at=300)]])
def test_an_end_that_can_not_be_told_is_not_told(fine_tunes: FineTunes, told: list[Any]) -> None:
    fine_tune = created(fine_tunes)
    tell(fine_tune, told)
    run(fine_tune)
    assert openai.job(fine_tune)["estimated_finish"] is None


def test_llm_engines_metrics_go_where_it_says_when_it_reports_to_wandb() -> None:
    body = {
        **ASKED,
        "hyperparameters": {"epochs": "2", "report_to": "wandb"},
        "wandb_config": {"project": "p", "name": "n"},
    }
    asked = llm_engine.Create.of_body(body).as_openais
    assert asked.wandb == {"project": "p", "name": "n"}
    assert asked.given == {"epochs": "2"}


def test_llm_engines_metrics_have_a_project_of_their_own_if_it_names_none() -> None:
    asked = llm_engine.Create.of_body({**ASKED, "hyperparameters": {"report_to": "wandb"}})
    assert asked.as_openais.wandb == {"project": llm_engine.PROJECT}


@pytest.mark.parametrize("report_to", [None, "none"])
def test_llm_engines_metrics_go_nowhere_else(report_to: str | None) -> None:
    body = {**ASKED, "hyperparameters": {"report_to": report_to}, "wandb_config": {"project": "p"}}
    assert llm_engine.Create.of_body(body).as_openais.wandb is None


@pytest.mark.parametrize("key", ["api_key", "base_url"])
def test_neither_a_callers_key_nor_a_callers_server_is_taken(key: str) -> None:
    body = {
        **ASKED,
        "hyperparameters": {"report_to": "wandb"},
        "wandb_config": {key: "secret-word"},
    }
    with pytest.raises(InvalidInput) as caught:
        _ = llm_engine.Create.of_body(body).as_openais
    assert caught.value.param == f"wandb_config.{key}"
    assert "secret-word" not in caught.value.message
