"""How many lines may be in the engine: all that fit, few while others ask, none at the end."""

import time
from types import SimpleNamespace

import pytest

from worker.batches.window import CALM_S, SMALL, Window

FULL = 64


@pytest.mark.parametrize(
    ("full", "running", "others", "room"),
    [
        *((FULL, running, 0, FULL - running) for running in (0, 60, FULL)),
        # From the moment that another asks, lines make room.
        (FULL, 0, 3, FULL // SMALL),
        (FULL, FULL, 1, FULL // SMALL - FULL),
        # One line at least is answered, whoever asks.
        *((full, 0, 500, 1) for full in (1, 2, SMALL - 1, SMALL, 2 * SMALL - 1)),
    ],
)
def test_a_batch_has_what_fits_less_what_runs_and_little_while_others_ask(
    full: int, running: int, others: int, room: int
) -> None:
    window = Window(full, lambda: others)
    window.running = running
    assert window.room == room


def test_all_of_it_is_used_again_when_others_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1_000.0, others=0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    window = Window(FULL, lambda: clock.others)
    # Each look at which others ask begins the wait anew.
    for clock.others in (1, 1, 0):
        assert window.room == FULL // SMALL
        clock.now += CALM_S - 0.01
    clock.now -= CALM_S - 0.01
    assert window.room == FULL // SMALL
    clock.now += 0.01
    assert window.room == FULL
