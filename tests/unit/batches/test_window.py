"""How many lines may be in the engine: all that fit, few while others ask, none at the end."""

import math
import time

import pytest

from worker.batches.window import CALM_S, SMALL, Window

FULL = 64


class Clock:
    """Time that stands still, and others who ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.others = 1_000.0, 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def window(self, full: int = FULL) -> Window:
        return Window(full, lambda: self.others)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("running", "others", "room"),
    [
        *((running, 0, FULL - running) for running in (0, 60, FULL)),
        # From the moment that another asks, lines make room.
        (0, 3, FULL // SMALL),
        (FULL, 1, FULL // SMALL - FULL),
    ],
)
def test_a_batch_has_what_fits_less_what_runs_and_little_while_others_ask(
    clock: Clock, running: int, others: int, room: int
) -> None:
    window = clock.window()
    window.running, clock.others = running, others
    assert window.room == room


def test_all_of_it_is_used_again_once_nobody_has_asked_for_a_while(clock: Clock) -> None:
    window = clock.window()
    # Each look at which others ask begins the wait anew.
    for clock.others in (1, 1, 0):
        assert window.room == FULL // SMALL
        clock.now += CALM_S - 0.01
    clock.now -= CALM_S - 0.01
    assert window.room == FULL // SMALL
    clock.now += 0.01
    assert window.room == FULL


@pytest.mark.parametrize("full", [1, 2, SMALL - 1, SMALL, 2 * SMALL - 1])
def test_one_line_at_least_is_answered_whoever_asks(clock: Clock, full: int) -> None:
    window = clock.window(full)
    assert window.room == full
    clock.others = 500
    assert window.room == 1


def test_no_line_begins_after_the_worker_was_told_to_stop(clock: Clock) -> None:
    window = clock.window()
    assert window.closed_at == math.inf
    window.close()
    assert window.closed_at == clock.now
