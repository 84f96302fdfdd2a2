"""What a fine-tune tells over all attempts at it, and what both APIs make of that."""

import time

import pytest
from openai.types.fine_tuning import FineTuningJob
from support.fine_tunes import created, eval_loss, loss, tell

from worker.errors import InvalidInput
from worker.fine_tunes.events import by_step, events
from worker.fine_tunes.faces import llm_engine, openai
from worker.fine_tunes.request import Error, Result
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import FineTunes
from worker.trainer.spec import ATTEMPTS, CHECKED, Checked, Event


def test_it_begins_with_its_creation_and_the_trainers_words_stay_as_they_are(
    fine_tune: FineTune,
) -> None:
    warning = Event(at=150, level="warn", message="2 rows were cut", step=0)
    tell(fine_tune, [warning, loss(10, 2.1)])
    first, *others = events(fine_tune)
    assert (first.at, first.message, first.level, first.metrics) == (100, "Created", "info", {})
    assert [(one.level, one.message) for one in others] == [
        ("warn", "2 rows were cut"),
        ("info", loss(10, 2.1).message),
    ]


SUCCEEDED = "Succeeded: the adapter is called by its name, demo.a"
CRASHED = Error(code="crashed", message="No memory.")


@pytest.mark.parametrize(
    ("result", "level", "message"),
    [
        (Result(status="succeeded", at=300, adapter="demo.a"), "info", SUCCEEDED),
        (Result(status="failed", at=300, error=CRASHED), "error", "No memory."),
        (Result(status="cancelled", at=300), "info", "Cancelled"),
    ],
    ids=["succeeded", "failed", "cancelled"],
)
def test_its_end_is_its_last(fine_tune: FineTune, result: Result, level: str, message: str) -> None:
    tell(fine_tune, [loss(10, 2.1)])
    fine_tune.end(result)
    last = events(fine_tune)[-1]
    assert (last.at, last.level, last.message) == (300, level, message)


FIRST = [loss(10, 3), loss(20, 2), loss(30, 1)]


@pytest.mark.parametrize(
    ("later", "losses"),
    [
        ([(20, [loss(25, 1.5), loss(30, 1.25)])], {10: 3, 20: 2, 25: 1.5, 30: 1.25}),
        # The one that begins earliest counts for all before it.
        ([(20, [loss(30, 5)]), (10, [loss(20, 2.5)])], {10: 3, 20: 2.5}),
        ([(10, [])], {10: 3}),
    ],
    ids=["goes on", "goes on twice", "has no events"],
)
def test_metrics_of_steps_that_a_later_attempt_does_again_are_left_out(
    fine_tune: FineTune, later: list[tuple[int, list[Event]]], losses: dict[int, float]
) -> None:
    tell(fine_tune, FIRST)
    for number, (step, lines) in enumerate(later, 2):
        tell(fine_tune, lines, f"00000{number}.aa", resumed_at=step)
    tell(fine_tune, [], "000009.aa").write_text("")
    (fine_tune.directory / ATTEMPTS / "000010.aa").mkdir()
    found = by_step(events(fine_tune))
    assert {step: row["train_loss"] for step, row in found.items()} == losses
    assert len([one for one in events(fine_tune) if one.metrics]) == len(losses)


def test_messages_of_all_attempts_are_told(fine_tune: FineTune) -> None:
    tell(fine_tune, [Event(at=1, message="a", step=30)])
    tell(fine_tune, [Event(at=2, message="b", step=20)], "000002.bb", resumed_at=10)
    assert [one.message for one in events(fine_tune)] == ["Created", "a", "b"]


@pytest.mark.parametrize("torn", ['{"at": 3, "mess', '{"at": 3, "message": "whole?"}', "\x00\x00"])
def test_an_unended_line_is_none_and_a_broken_one_costs_itself(
    fine_tune: FineTune, torn: str
) -> None:
    path = tell(fine_tune, [loss(10, 3), loss(20, 2)])
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:20]
    path.write_text("\n".join([*lines, torn]))
    assert by_step(events(fine_tune)).keys() == {20}
    assert len(events(fine_tune)) == 2


def test_metrics_have_openais_names_and_none_that_is_no_number(fine_tune: FineTune) -> None:
    # The mean of all steps is none of them.
    odd = {"train_loss": 9.0, "grad_norm": float("nan")}
    last = Event(at=1, message="m", step=10, metrics=odd)
    tell(fine_tune, [loss(10, 3), eval_loss(10, 2), last])
    row = by_step(events(fine_tune))[10]
    names = ("train_loss", "valid_loss", "full_valid_loss", "grad_norm")
    assert [row[name] for name in names] == [3, 2, 2, 0.5]


def test_ids_and_times_follow_the_order_though_clocks_do_not(fine_tune: FineTune) -> None:
    tell(fine_tune, [loss(10, 3, at=500.5)])
    tell(fine_tune, [loss(20, 2, at=400)], "000002.bb", resumed_at=10)
    places = [(one.created_at, one.id) for one in events(fine_tune)]
    assert places == sorted(places)
    assert [created_at for created_at, _ in places] == [100, 500, 500]
    assert len({id for _, id in places}) == 3


# As both APIs show it, and what they ask:


def run(fine_tune: FineTune) -> None:
    """Let a worker be at it."""
    (fine_tune.leases() / "lease-1").mkdir(parents=True)
    fine_tune.write(f"{ATTEMPTS}/000001.aa/{CHECKED}", Checked(rows=3))


def test_an_integration_is_shown_as_openais_client_reads_it(fine_tunes: FineTunes) -> None:
    wandb = {"project": "p", "tags": ["a"]}
    job = FineTuningJob.model_validate(openai.job(created(fine_tunes, wandb=wandb)))
    (integration,) = job.integrations or []
    assert (integration.type, integration.wandb.project) == ("wandb", "p")
    assert integration.wandb.tags == ["a"]


def test_an_end_is_estimated_from_the_pace(
    fine_tune: FineTune, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Five epochs; each takes a hundred seconds.
    tell(fine_tune, [loss(10, 3, at=1000), loss(20, 2, at=1100)])
    assert openai.job(fine_tune)["estimated_finish"] is None
    run(fine_tune)
    monkeypatch.setattr(time, "time", lambda: 1150.0)
    assert openai.job(fine_tune)["estimated_finish"] == 1150 + 3 * 100
    fine_tune.end(Result(status="cancelled", at=1200))
    assert openai.job(fine_tune)["estimated_finish"] is None


@pytest.mark.parametrize("found", [[], [loss(10, 3)], [loss(10, 3), loss(10, 2, at=300)]])
def test_an_end_that_nobody_knows_is_not_estimated(fine_tune: FineTune, found: list[Event]) -> None:
    tell(fine_tune, found)
    run(fine_tune)
    assert openai.job(fine_tune)["estimated_finish"] is None


@pytest.mark.parametrize(
    ("report_to", "config", "wandb"),
    [
        ("wandb", {"project": "p", "name": "n"}, {"project": "p", "name": "n"}),
        ("wandb", None, {"project": llm_engine.PROJECT}),
        (None, {"project": "p"}, None),
        ("none", {"project": "p"}, None),
    ],
)
def test_llm_engines_metrics_go_where_it_says_when_it_reports_to_wandb(
    report_to: str | None, config: dict[str, str] | None, wandb: dict[str, str] | None
) -> None:
    hyperparameters = {"epochs": "2", "report_to": report_to}
    body = {"model": "demo", "training_file": "file-a", "hyperparameters": hyperparameters}
    asked = llm_engine.Create.of_body({**body, "wandb_config": config}).as_openais
    assert asked.wandb == wandb
    assert asked.given["epochs"] == "2"


@pytest.mark.parametrize("key", ["api_key", "base_url"])
def test_neither_a_callers_key_nor_a_callers_server_is_taken(key: str) -> None:
    body = {"model": "demo", "training_file": "a", "hyperparameters": {"report_to": "wandb"}}
    with pytest.raises(InvalidInput) as caught:
        _ = llm_engine.Create.of_body({**body, "wandb_config": {key: "secret-word"}}).as_openais
    assert caught.value.param == f"wandb_config.{key}"
    assert "secret-word" not in caught.value.message
