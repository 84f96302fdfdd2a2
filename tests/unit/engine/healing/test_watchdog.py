"""A core that hangs, told from one that computes."""

import pytest

from worker.engine.healing.watchdog import LATE_S, Heartbeat, Silence, prefill_s


def watched(beats: dict[float, float], until: float, *, idle_until: float = 0) -> float:
    """Look every tenth of a second; return the silence at the end.

    Args:
        beats: when a sign of life came, by the time from which it is known.
        until: the last look.
        idle_until: until when nothing runs.
    """
    silence, now, beat_at, silent_s = Silence(0), 0.0, 0.0, 0.0
    while now < until:
        now += 0.1
        beat_at = max([at for known, at in beats.items() if known <= now], default=beat_at)
        silent_s = silence.look(now, beat_at, busy=now > idle_until)
    return silent_s


def test_silence_counts_from_the_last_sign_of_life() -> None:
    assert watched({3.0: 3.0}, until=10) == pytest.approx(7, abs=0.2)


def test_an_idle_core_is_not_silent() -> None:
    assert watched({}, until=10, idle_until=20) == 0


def test_silence_of_a_busy_core_counts_from_its_first_request() -> None:
    assert watched({}, until=10, idle_until=6) == pytest.approx(4, abs=0.2)


def test_a_time_in_which_this_process_was_frozen_does_not_count() -> None:
    silence = Silence(0)
    assert silence.look(1, 0, busy=True) == 1
    assert silence.look(1 + LATE_S + 60, 0, busy=True) == 0
    assert silence.look(1 + LATE_S + 61, 0, busy=True) == 1


def test_prompts_give_a_step_more_time_up_to_the_most_that_it_computes() -> None:
    assert prefill_s([], 8192, "cuda") == 0
    assert prefill_s([100, 50], 8192, "cpu") == 3
    assert prefill_s([100_000], 2000, "cuda") == prefill_s([2000], 2000, "cuda") == 4


def test_a_heartbeat_takes_whatever_vllm_records() -> None:
    heartbeat = Heartbeat()
    heartbeat.at = 0
    heartbeat.record("scheduler's", None, mm_cache_stats=None, engine_idx=0)
    assert heartbeat.at > 0
