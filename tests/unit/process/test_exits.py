"""Functions that run before the process exits: all of them, and none for too long."""

import threading

import pytest

from worker.process import exits


def test_the_exit_waits_for_all_functions_but_not_for_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exits, "_functions", [])
    monkeypatch.setattr(exits, "TIMEOUT_S", 0.1)
    released, done = threading.Event(), threading.Event()

    def hang() -> None:
        released.wait()

    exits.call_at_exit(hang)
    exits.call_at_exit(done.set)
    exits.call_functions()
    assert done.is_set()
    released.set()
