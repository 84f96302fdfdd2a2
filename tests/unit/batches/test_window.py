"""How many lines may be in the engine: all that fit, few while others ask, none at the end."""

import math
import time

import pytest

from worker.batches.window import CALM_S, SMALL, Window


class Clock:
    """Time that stands still, and others who ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.others = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def window(self, full: int) -> Window:
        return Window(full, lambda: self.others)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_alone_a_batch_has_all_that_fits_less_what_runs(clock: Clock) -> None:
    window = clock.window(64)
    assert window.room == 64
    window.running = 60
    assert window.room == 4
    window.running = 64
    assert window.room == 0


def test_from_the_moment_that_another_asks_lines_make_room(clock: Clock) -> None:
    window = clock.window(64)
    window.running = 64
    clock.others = 1
    assert window.room == 64 // SMALL - 64


def test_all_of_it_is_used_again_once_nobody_has_asked_for_a_while(clock: Clock) -> None:
    window = clock.window(64)
    clock.others = 3
    assert window.room == 64 // SMALL
    clock.others = 0
    clock.now += CALM_S - 0.01
    assert window.room == 64 // SMALL
    clock.now += 0.01
    assert window.room == 64


def test_each_look_at_which_others_ask_begins_the_wait_anew(clock: Clock) -> None:
    window = clock.window(64)
    for clock.others in (1, 1, 0):
        assert window.room == 64 // SMALL
        clock.now += CALM_S - 0.01
    clock.now += 0.02
    assert window.room == 64


@pytest.mark.parametrize("full", [1, 2, SMALL - 1, SMALL, 2 * SMALL - 1])
def test_one_line_at_least_is_answered_whoever_asks(clock: Clock, full: int) -> None:
    window = clock.window(full)
    assert window.room == full
    clock.others = 500
    assert window.room == 1


def test_no_line_begins_after_the_worker_was_told_to_stop(clock: Clock) -> None:
    window = clock.window(8)
    assert window.closed_at == math.inf
    window.close()
    assert window.closed_at == clock.now
