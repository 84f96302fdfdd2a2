"""Where a start compiles code to, and when it may plan its memory."""

import logging
import os
from pathlib import Path

import pytest
from support.compile_caches import GRAPH, INDUCTOR, KEY, PLAN, Started, archive, shared

from worker.compile_cache import STARTUP_PLAN, VARIABLES, prepare


@pytest.fixture(autouse=True)
def environ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> pytest.MonkeyPatch:
    """A home of its own, in which nothing is set."""
    for name in (*VARIABLES, STARTUP_PLAN):
        # Set first, so that what a test exports is taken back, too.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    caplog.set_level(logging.INFO, logger="worker")
    return monkeypatch


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    volume = tmp_path / "volume"
    volume.mkdir()
    return volume


def test_a_start_that_compiles_makes_no_plan(volume: Path, tmp_path: Path) -> None:
    first = Started(volume, tmp_path / "1")
    assert os.environ[STARTUP_PLAN] == ""
    first.compile(GRAPH, PLAN).healthy()
    assert shared(volume) == [archive(volume).name]
    assert not first.holds(PLAN)


def test_the_second_start_makes_the_plan_and_the_third_one_finds_it(
    volume: Path, tmp_path: Path
) -> None:
    Started(volume, tmp_path / "1").compile(GRAPH).healthy()
    second = Started(volume, tmp_path / "2")
    assert os.environ[STARTUP_PLAN] == "1"
    assert not second.holds(PLAN)
    # Inductor's own part grows, without anything being compiled again.
    second.compile(PLAN, INDUCTOR).healthy()
    assert shared(volume) == [archive(volume, f"{KEY}.plan").name, archive(volume).name]
    assert Started(volume, tmp_path / "3").holds(PLAN)


def test_what_vllm_compiled_again_makes_no_plan(volume: Path, tmp_path: Path) -> None:
    Started(volume, tmp_path / "1").compile(GRAPH).healthy()
    second = Started(volume, tmp_path / "2").compile(GRAPH, PLAN, content="again").healthy()
    assert shared(volume) == [archive(volume).name]
    assert not second.holds(PLAN)


def test_a_plan_of_a_start_that_died_is_not_taken_for_a_good_one(
    volume: Path, tmp_path: Path
) -> None:
    Started(volume, tmp_path / "1").compile(GRAPH).healthy()
    Started(volume, tmp_path / "2").compile(GRAPH, PLAN, content="again")
    assert not Started(volume, tmp_path / "2").holds(PLAN)


def test_the_operator_decides_about_the_plan(
    volume: Path, tmp_path: Path, environ: pytest.MonkeyPatch
) -> None:
    Started(volume, tmp_path / "1").compile(GRAPH).healthy()
    environ.setenv(STARTUP_PLAN, "0")
    assert Started(volume, tmp_path / "2").found
    assert os.environ[STARTUP_PLAN] == "0"


def test_everything_compiled_goes_to_one_place(volume: Path, tmp_path: Path) -> None:
    cache = prepare(volume)
    assert cache
    assert cache.local == tmp_path / "home" / ".cache" / "worker-compiled"
    assert {name: os.environ[name] for name in VARIABLES} == {
        name: str(cache.local / folder) for name, folder in VARIABLES.items()
    }
    # As a child of the worker finds it.
    assert prepare(volume)


@pytest.mark.parametrize("name", VARIABLES)
def test_an_operators_own_directory_is_left_alone(
    volume: Path,
    name: str,
    environ: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    environ.setenv(name, "/own")
    assert prepare(volume) is None
    assert f"because {name} is set" in caplog.text
    assert {name: os.environ[name] for name in VARIABLES if os.environ[name]} == {name: "/own"}


def test_without_a_volume_nothing_is_kept(tmp_path: Path) -> None:
    assert prepare(tmp_path / "none") is None
    assert not any(os.environ[name] for name in VARIABLES)
    assert not (tmp_path / "home").exists()


def test_without_a_home_nothing_is_kept(
    volume: Path, environ: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environ.setenv("HOME", "/dev/null")
    assert prepare(volume) is None
    assert "there is no place for it here" in caplog.text
