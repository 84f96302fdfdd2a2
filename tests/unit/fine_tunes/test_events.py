"""What a fine-tune has told, over all attempts at it."""

from pathlib import Path

import pytest
from support.engine.scripted import settings
from support.told import created, eval_loss, loss, tell

from worker.fine_tunes.events import by_step, events
from worker.fine_tunes.request import Error, Result
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import FineTunes
from worker.trainer.spec import Event


@pytest.fixture
def fine_tune(tmp_path: Path) -> FineTune:
    return created(FineTunes.of(settings(FILES_PATH=str(tmp_path))))


def messages(fine_tune: FineTune) -> list[str]:
    return [one.message for one in events(fine_tune)]


def test_it_begins_with_its_creation(fine_tune: FineTune) -> None:
    (only,) = events(fine_tune)
    assert (only.at, only.message, only.level, only.metrics) == (100, "Created", "info", {})


def test_the_trainers_words_stay_as_they_are(fine_tune: FineTune) -> None:
    warning = Event(at=150, level="warn", message="2 rows were cut", step=0)
    told = [warning, loss(10, 2.1)]
    tell(fine_tune, told)
    assert [one.message for one in events(fine_tune)[1:]] == [one.message for one in told]
    assert [one.level for one in events(fine_tune)] == ["info", "warn", "info"]


@pytest.mark.parametrize(
    ("result", "level", "message"),
    [
        (
            Result(status="succeeded", at=300, adapter="demo.a"),
            "info",
            "Succeeded: the adapter is called by its name, demo.a",
        ),
        (
            Result(status="failed", at=300, error=Error(code="crashed", message="No memory.")),
            "error",
            "No memory.",
        ),
        (Result(status="cancelled", at=300), "info", "Cancelled"),
    ],
)
def test_it_ends_with_its_end(
    fine_tune: FineTune, result: Result, level: str, message: str
) -> None:
    tell(fine_tune, [loss(10, 2.1)])
    fine_tune.end(result)
    last = events(fine_tune)[-1]
    assert (last.at, last.level, last.message) == (300, level, message)


def test_metrics_of_steps_that_were_done_again_are_left_out(fine_tune: FineTune) -> None:
    tell(fine_tune, [loss(10, 3), loss(20, 2), loss(30, 1)])
    tell(fine_tune, [loss(25, 1.5), loss(30, 1.25)], "000002.bb", resumed_at=20)
    found = by_step(events(fine_tune))
    losses = {step: row["train_loss"] for step, row in found.items()}
    assert losses == {10: 3, 20: 2, 25: 1.5, 30: 1.25}


def test_the_attempt_that_begins_earliest_counts_for_all_before_it(fine_tune: FineTune) -> None:
    tell(fine_tune, [loss(10, 3), loss(20, 2)])
    tell(fine_tune, [loss(30, 1)], "000002.bb", resumed_at=20)
    tell(fine_tune, [loss(20, 2.5)], "000003.cc", resumed_at=10)
    losses = [(one.step, one.metrics["loss"]) for one in events(fine_tune) if one.metrics]
    assert losses == [(10, 3), (20, 2.5)]


def test_an_attempt_that_has_told_nothing_changes_nothing(fine_tune: FineTune) -> None:
    tell(fine_tune, [loss(10, 3), loss(20, 2)])
    tell(fine_tune, [], "000002.bb", resumed_at=10)
    tell(fine_tune, [], "000003.cc").write_text("")
    assert by_step(events(fine_tune)).keys() == {10}


def test_messages_of_all_attempts_are_told(fine_tune: FineTune) -> None:
    tell(fine_tune, [Event(at=1, message="a", step=30)])
    tell(fine_tune, [Event(at=2, message="b", step=20)], "000002.bb", resumed_at=10)
    assert messages(fine_tune) == ["Created", "a", "b"]


@pytest.mark.parametrize("torn", ['{"at": 3, "mess', '{"at": 3, "message": "whole?"}', "\x00\x00"])
def test_a_line_that_has_not_ended_is_none(fine_tune: FineTune, torn: str) -> None:
    path = tell(fine_tune, [loss(10, 3)])
    before = events(fine_tune)
    with path.open("a") as opened:
        opened.write(torn)
    assert events(fine_tune) == before


def test_a_broken_line_in_between_costs_only_itself(fine_tune: FineTune) -> None:
    path = tell(fine_tune, [loss(10, 3), loss(20, 2)])
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:20]
    path.write_text("\n".join([*lines, ""]))
    assert by_step(events(fine_tune)).keys() == {20}


def test_what_is_no_number_is_left_out(fine_tune: FineTune) -> None:
    lost = Event(at=1, message="m", step=10, metrics={"loss": float("nan"), "epoch": 1.0})
    tell(fine_tune, [lost])
    assert by_step(events(fine_tune)) == {10: {"epoch": 1.0}}


def test_losses_have_openais_names_and_the_mean_of_all_steps_is_none_of_them(
    fine_tune: FineTune,
) -> None:
    summary = Event(at=1, message="m", step=10, metrics={"train_loss": 9.0})
    tell(fine_tune, [loss(10, 3), eval_loss(10, 2), summary])
    row = by_step(events(fine_tune))[10]
    assert (row["train_loss"], row["valid_loss"], row["full_valid_loss"]) == (3, 2, 2)


def test_ids_and_times_follow_the_order_though_clocks_do_not(fine_tune: FineTune) -> None:
    tell(fine_tune, [loss(10, 3, at=500.5)])
    tell(fine_tune, [loss(20, 2, at=400)], "000002.bb", resumed_at=10)
    found = events(fine_tune)
    places = [(one.created_at, one.id) for one in found]
    assert places == sorted(places)
    assert [one.created_at for one in found] == [100, 500, 500]
    assert len({one.id for one in found}) == 3
