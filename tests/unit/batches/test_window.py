"""Number of lines in the engine: all that fit, or a few while there are other requests."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from worker.batches.run import BUSY_DIVISOR, QUIET_S, SlotWindow

FULL = 64


@pytest.mark.parametrize(
    ("full", "running", "others", "free_slots"),
    [
        *((FULL, running, 0, FULL - running) for running in (0, 60, FULL)),
        # As soon as there is another request, lines free their slots.
        (FULL, 0, 3, FULL // BUSY_DIVISOR),
        (FULL, FULL, 1, FULL // BUSY_DIVISOR - FULL),
        # There is always a slot for one line.
        *(
            (full, 0, 500, 1)
            for full in (1, 2, BUSY_DIVISOR - 1, BUSY_DIVISOR, 2 * BUSY_DIVISOR - 1)
        ),
    ],
)
def test_a_batch_uses_all_free_slots_and_only_a_few_while_other_requests_run(
    full: int, running: int, others: int, free_slots: int
) -> None:
    window = SlotWindow(full, lambda: others)
    for _ in range(running):
        window.take_slot()
    assert window.free_slot_count == free_slots


def test_a_batch_uses_all_slots_again_some_time_after_other_requests_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=1_000.0, others=0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    window = SlotWindow(FULL, lambda: clock.others)
    # Each check that finds other requests restarts the wait.
    for clock.others in (1, 1, 0):
        assert window.free_slot_count == FULL // BUSY_DIVISOR
        clock.now += QUIET_S - 0.01
    clock.now -= QUIET_S - 0.01
    assert window.free_slot_count == FULL // BUSY_DIVISOR
    clock.now += 0.01
    assert window.free_slot_count == FULL


def test_a_change_of_the_free_slots_wakes_all_batches() -> None:
    window, event, gone = SlotWindow(FULL, lambda: 0), asyncio.Event(), asyncio.Event()
    with window.set_on_change(event):
        with window.set_on_change(gone):
            window.take_slot()
        window.free_slot()
        assert (event.is_set(), gone.is_set()) == (True, False)


@pytest.mark.parametrize(("running", "is_woken"), [(FULL // BUSY_DIVISOR, False), (FULL, True)])
def test_another_request_wakes_batches_that_have_its_slots(running: int, is_woken: bool) -> None:
    window, event = SlotWindow(FULL, lambda: 0), asyncio.Event()
    for _ in range(running):
        window.take_slot()
    with window.set_on_change(event):
        window.note_other_request()
    assert event.is_set() == is_woken
    # The request has ended, but more are expected.
    assert window.free_slot_count == FULL // BUSY_DIVISOR - running
