"""Events of fine-tunes, merged from all attempts."""

from typing import Any

import pytest
from support.fine_tunes import eval_loss_event, loss_event, write_events

from worker.fine_tunes.record import FailureReason, FineTune, FineTuneResult
from worker.fine_tunes.spec import ATTEMPTS_DIR, Event

CRASHED = FailureReason(code="crashed", message="No memory.")


@pytest.mark.parametrize(
    ("result", "level", "message"),
    [
        ({"status": "succeeded", "adapter": "a"}, "info", "Succeeded: the adapter is called by"),
        ({"status": "failed", "error": CRASHED}, "error", "No memory."),
        ({"status": "cancelled"}, "info", "Cancelled"),
    ],
    ids=["succeeded", "failed", "cancelled"],
)
def test_events_begin_with_the_creation_end_with_the_result_and_keep_messages_unchanged(
    fine_tune: FineTune, result: dict[str, Any], level: str, message: str
) -> None:
    write_events(
        fine_tune, [Event(at=150, level="warn", message="2 rows were cut"), loss_event(10, 2.1)]
    )
    write_events(fine_tune, [Event(at=160, message="b", step=5)], "000002.bb", resumed_at=5)
    fine_tune.end(FineTuneResult(at=300, **result))
    first, *others, last = fine_tune.events()
    assert (first.at, first.message, first.level, first.metrics) == (100, "Created", "info", {})
    # Messages of all attempts are included.
    assert [(event.level, event.message) for event in others] == [
        ("warn", "2 rows were cut"),
        ("info", "b"),
    ]
    assert (last.at, last.level, last.message.startswith(message)) == (300, level, True)


FIRST = [
    loss_event(10, 3),
    loss_event(20, 2),
    loss_event(30, 1),
    Event(at=150, message="Epoch 3 saved", step=30),
]


@pytest.mark.parametrize(
    ("later", "losses"),
    [
        ([(20, [loss_event(25, 1.5), loss_event(30, 1.25)])], {10: 3, 20: 2, 25: 1.5, 30: 1.25}),
        # An attempt that resumes earlier overrides all attempts before it.
        ([(20, [loss_event(30, 5)]), (10, [loss_event(20, 2.5)])], {10: 3, 20: 2.5}),
        ([(10, [])], {10: 3}),
    ],
    ids=["resumed", "resumed twice", "no events"],
)
def test_events_of_steps_that_a_later_attempt_repeats_are_left_out(
    fine_tune: FineTune, later: list[tuple[int, list[Event]]], losses: dict[int, float]
) -> None:
    write_events(fine_tune, FIRST)
    for number, (step, lines) in enumerate(later, 2):
        write_events(fine_tune, lines, f"00000{number}.aa", resumed_at=step)
    write_events(fine_tune, [], "000009.aa").write_text("")
    (fine_tune.directory / ATTEMPTS_DIR / "000010.aa").mkdir()
    rows = fine_tune.metrics_by_step()
    assert {step: row["train_loss"] for step, row in rows.items()} == losses
    assert [event.step for event in fine_tune.events()[1:]] == [*losses]


@pytest.mark.parametrize(
    "partial_line", ['{"at": 3, "mess', '{"at": 3, "message": "whole?"}', "\x00\x00"]
)
def test_incomplete_and_broken_lines_are_ignored(fine_tune: FineTune, partial_line: str) -> None:
    path = write_events(fine_tune, [loss_event(10, 3), loss_event(20, 2)])
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:20]
    path.write_text("\n".join([*lines, partial_line]))
    assert fine_tune.metrics_by_step().keys() == {20}
    assert len(fine_tune.events()) == 2


def test_metrics_have_openais_names_and_omit_values_that_are_not_numbers(
    fine_tune: FineTune,
) -> None:
    # The trainer's mean of all steps doesn't replace the loss of this step.
    metrics = {"train_loss": 9.0, "grad_norm": float("nan")}
    last = Event(at=1, message="m", step=10, metrics=metrics)
    write_events(fine_tune, [loss_event(10, 3), eval_loss_event(10, 2), last])
    row = fine_tune.metrics_by_step()[10]
    names = ("train_loss", "valid_loss", "full_valid_loss", "grad_norm")
    assert [row[name] for name in names] == [3, 2, 2, 0.5]


def test_ids_and_times_of_events_increase_even_if_clocks_do_not(fine_tune: FineTune) -> None:
    write_events(fine_tune, [loss_event(10, 3, at=500.5)])
    write_events(fine_tune, [loss_event(20, 2, at=400)], "000002.bb", resumed_at=10)
    times_and_ids = [(event.created_at, event.id) for event in fine_tune.events()]
    assert times_and_ids == sorted(times_and_ids)
    assert [created_at for created_at, _ in times_and_ids] == [100, 500, 500]
    assert len({id for _, id in times_and_ids}) == 3
