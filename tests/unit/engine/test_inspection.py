import os
from collections.abc import Callable
from typing import Any

import pytest
from vllm.model_executor.models import registry

from worker.engine.inspection import ELSEWHERE, by_forks, forked


def refuse(_: Callable[[], Any]) -> None:
    pytest.fail("what can be answered in a fork is asked of vLLM")


def test_a_function_runs_in_a_fork_which_has_all_that_this_process_has() -> None:
    here = object()
    pid, same = forked(lambda: (os.getpid(), id(here)), refuse)
    assert pid != os.getpid()
    assert same == id(here)


@pytest.mark.parametrize(
    "look", [lambda: 1 // 0, lambda: os._exit(1), lambda: (_ for _ in ())], ids=str
)
def test_what_fails_in_a_fork_is_done_in_vllms_own_way_and_prints_nothing(
    look: Callable[[], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert forked(look, lambda asked: asked is look) is True
    assert capfd.readouterr() == ("", "")


def test_vllm_looks_in_forks_during_the_block_only() -> None:
    own = getattr(registry, ELSEWHERE)
    with by_forks():
        assert getattr(registry, ELSEWHERE)(os.getpid) != os.getpid()
        assert getattr(registry, ELSEWHERE) is not own
    assert getattr(registry, ELSEWHERE) is own


def test_a_vllm_that_has_moved_the_name_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(registry, ELSEWHERE)
    with by_forks():
        assert not hasattr(registry, ELSEWHERE)
