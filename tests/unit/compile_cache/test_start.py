"""Where a start compiles code to, and when it may plan its memory."""

import os

import pytest
from support.compile_caches import GRAPH, INDUCTOR, KEY, PLAN, Workers

from worker.compile_cache import STARTUP_PLAN, VARIABLES, prepare

KEY_OF_PLAN = f"{KEY}.plan"


def test_a_start_that_compiles_makes_no_plan(workers: Workers) -> None:
    first = workers.start(1)
    assert os.environ[STARTUP_PLAN] == ""
    first.compile(GRAPH, PLAN).healthy()
    assert workers.published() == [KEY]
    assert not first.holds(PLAN)


def test_the_second_start_makes_the_plan_and_the_third_one_finds_it(workers: Workers) -> None:
    workers.start(1).compile(GRAPH).healthy()
    second = workers.start(2)
    assert os.environ[STARTUP_PLAN] == "1"
    assert not second.holds(PLAN)
    # Inductor's own part grows, without anything being compiled again.
    second.compile(PLAN, INDUCTOR).healthy()
    assert workers.published() == [KEY, KEY_OF_PLAN]
    assert workers.start(3).holds(PLAN)


def test_what_vllm_compiled_again_makes_no_plan(workers: Workers) -> None:
    workers.start(1).compile(GRAPH).healthy()
    second = workers.start(2).compile(GRAPH, PLAN, content="again").healthy()
    assert workers.published() == [KEY]
    assert not second.holds(PLAN)


def test_a_plan_of_a_start_that_died_is_not_taken_for_a_good_one(workers: Workers) -> None:
    workers.start(1).compile(GRAPH).healthy()
    workers.start(2).compile(GRAPH, PLAN, content="again")
    assert not workers.start(2).holds(PLAN)


def test_the_operator_decides_of_plans(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.start(1).compile(GRAPH).healthy()
    monkeypatch.setenv(STARTUP_PLAN, "0")
    assert workers.start(2).found
    assert os.environ[STARTUP_PLAN] == "0"


def test_everything_compiled_goes_to_one_place(workers: Workers) -> None:
    cache = prepare(workers.volume)
    assert cache
    assert cache.local == workers.disks / "home" / ".cache" / "worker-compiled"
    assert {name: os.environ[name] for name in VARIABLES} == {
        name: str(cache.local / folder) for name, folder in VARIABLES.items()
    }
    # As a child of the worker finds it.
    assert prepare(workers.volume)


@pytest.mark.parametrize("name", VARIABLES)
def test_an_operators_own_directory_is_left_alone(
    workers: Workers, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "/own")
    assert prepare(workers.volume) is None
    assert f"because {name} is set" in caplog.text
    assert {name: os.environ[name] for name in VARIABLES if os.environ[name]} == {name: "/own"}


def test_without_a_volume_nothing_is_kept(workers: Workers) -> None:
    assert prepare(workers.volume / "none") is None
    assert not any(os.environ[name] for name in VARIABLES)
    assert not (workers.disks / "home").exists()


def test_without_a_home_nothing_is_kept(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    assert prepare(workers.volume) is None
    assert "there is no place for it here" in caplog.text
