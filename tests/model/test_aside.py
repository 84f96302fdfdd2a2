"""A real engine that is set aside three times (scripts/aside.py): its answers, what it leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
from model.scripts.aside import PROCESSES
from support.processes.commands import HOME
from support.processes.forked import run_forked

SCRIPT = Path(__file__).parent / "scripts" / "aside.py"
# A dead client is collected only when the next core is used: its sockets' descriptors, and threads.
ONE_CLIENT = 20
MEGABYTES = 40


@pytest.fixture(scope="module")
def ran(demo_model: Path) -> Any:
    ended = run_forked(HOME, SCRIPT, demo_model)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_greedy_answers_are_the_same_on_every_core(ran: Any) -> None:
    assert all(one["answers"] == ran["answers"] for one in ran["rounds"])


def test_requests_that_come_meanwhile_are_answered_after_it_or_told_when_to_come(ran: Any) -> None:
    first, *others = [one["asked"] for one in ran["rounds"]]
    for refused in first:
        error = json.loads(refused["error"])["error"]
        assert (error["code"], error["retryable"], error["retry_after"]) == (503, True, 60)
    assert others == [ran["answers"]] * 2


def test_a_stream_that_runs_for_too_long_fails_as_retryable(ran: Any) -> None:
    for one in ran["rounds"]:
        assert (one["running"]["code"], one["running"]["retryable"]) == (503, True)


def test_models_are_listed_meanwhile_and_the_health_tells_that_they_do_not_answer(ran: Any) -> None:
    for one in ran["rounds"]:
        assert (one["models"], one["health"]["code"]) == (["demo"], 503)


def test_it_leaves_no_process_no_descriptor_and_no_memory(ran: Any) -> None:
    before, rounds = ran["before"], ran["rounds"]
    for one in rounds:
        # Fewer where one had just ended that the start had begun.
        assert one["inside"]["children"] <= before["children"] - PROCESSES
        assert one["after"]["children"] <= before["children"]
    first, last = rounds[0]["after"], rounds[-1]["after"]
    for kind in ("descriptors", "threads"):
        assert last[kind] <= min(first[kind] + 3, before[kind] + ONE_CLIENT)
    assert last["megabytes"] <= before["megabytes"] + MEGABYTES
