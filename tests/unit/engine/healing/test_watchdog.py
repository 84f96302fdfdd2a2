"""A core that hangs, told from one that computes."""

import pytest

from worker.engine.healing.watchdog import LATE_S, Silence, prefill_s


@pytest.mark.parametrize(
    ("beat_at", "idle_until", "silent_s"),
    [
        pytest.param(3, 0, 7, id="since the last sign of life"),
        pytest.param(0, 6, 4, id="since the first request"),
        pytest.param(0, 20, 0, id="not while it is idle"),
    ],
)
def test_silence_counts(beat_at: float, idle_until: float, silent_s: float) -> None:
    silence, found = Silence(0), 0.0
    for now in range(1, 11):
        beat = beat_at if now >= beat_at else 0
        found = silence.look(now, beat, busy=now > idle_until)
    assert found == silent_s


def test_a_time_in_which_this_process_was_frozen_does_not_count() -> None:
    silence = Silence(0)
    assert silence.look(1, 0, busy=True) == 1
    assert silence.look(1 + LATE_S + 60, 0, busy=True) == 0
    assert silence.look(1 + LATE_S + 61, 0, busy=True) == 1


def test_prompts_give_a_step_more_time_up_to_the_most_that_it_computes() -> None:
    assert prefill_s([], 8192, "cuda") == 0
    assert prefill_s([100, 50], 8192, "cpu") == 3
    assert prefill_s([100_000], 2000, "cuda") == prefill_s([2000], 2000, "cuda") == 4
