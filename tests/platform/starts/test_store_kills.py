"""Workers that are killed during a download: their partial files are continued, and not trusted."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support import ROOT
from support.hub.downloads import (
    PREFETCH,
    contents,
    environ,
    found,
    hold,
    hub_with,
    leases,
    repository,
    sent,
    size,
)
from support.hub.server import Hub, commit
from support.processes.background import Background, background, wait_until
from support.processes.commands import HOME
from support.processes.side_by_side import side_by_side

from worker.store import Found, Places, Wanted, resolve
from worker.store.fetching import ORDER, Fetching, Order

pytestmark = pytest.mark.slow

WAITING = "another worker downloads it"
PROGRESS = re.compile(f"{WAITING}: [0-9.]+[kM]?B of [0-9.]+MB")
ROUNDS = 20
# Of all rounds together, in bytes per second.
THROTTLE = 6_000_000


@dataclass
class Round:
    """One volume, on which a worker is killed during its download, and another one starts.

    ``moment`` is when: the part of the bytes that are sent; above 1, seconds after the last byte.
    ``trusted`` are the files that a worker would load of what the dead one has left.
    """

    wanted: Wanted
    places: Places
    moment: float
    killed: bool = False
    sent: int = 0
    trusted: dict[str, str] | None = None
    fetching: Fetching | None = None
    place: Path = Path()


@pytest.fixture(scope="module")
def source(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("source") / "files", demo_model, shards=4)


@pytest.fixture(scope="module")
def served(source: Path) -> Iterator[Hub]:
    with hub_with(source) as running:
        yield running


@pytest.fixture(scope="module")
def dead(
    served: Hub, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Any]]:
    """Run all scenarios side by side: in all of them, others wait 15 s for the dead worker."""
    ways: dict[str, Callable[[], object]] = {
        "rounds": lambda: all_rounds(served, source, tmp_path_factory.mktemp("volumes")),
        "replaced": lambda: replaced(source, tmp_path_factory.mktemp("volume")),
    }
    with side_by_side(ways) as result:
        yield result


@pytest.fixture
def rounds(dead: Callable[[str], list[Round]]) -> list[Round]:
    return dead("rounds")


def all_rounds(served: Hub, source: Path, folder: Path) -> list[Round]:
    """Run all rounds, side by side."""
    moments = Random(155)
    begun = []
    for number in range(ROUNDS):
        served.add(f"org/{number}", source)
        places = Places(folder / str(number), folder / "nothing")
        begun.append(Round(Wanted(f"org/{number}"), places, moments.uniform(0, 1.05)))
    environ = {**HOME, "HF_HOME": str(folder), "HF_ENDPOINT": served.endpoint}
    served.throttle = THROTTLE
    kill_all(begun, environ, served, source)
    served.throttle = None
    for trial in begun:
        assert trial.fetching
        trial.place = trial.fetching.result()[trial.wanted].place
    return begun


def kill_all(rounds: list[Round], environ: dict[str, str], served: Hub, source: Path) -> None:
    """Start a download for every round, kill it at its moment, and start another one."""
    running = [(trial, downloading(trial, environ)) for trial in rounds]

    def kill_who_is_due() -> bool:
        for trial, process in tuple(running):
            trial.sent = sent(served, trial.wanted.model)
            if trial.sent >= min(trial.moment, 1) * size(source):
                time.sleep(max(0, trial.moment - 1))
                trial.killed = process.poll() is None
                process.send_signal(signal.SIGKILL)
                process.communicate()
                trial.sent = sent(served, trial.wanted.model)
                # By the commit, which needs no ref.
                left = resolve(replace(trial.wanted, revision=commit(source)), trial.places)
                trial.trusted = contents(left.place) if isinstance(left, Found) else None
                trial.fetching = Fetching([trial.wanted], trial.places, environ)
                running.remove((trial, process))
        return not running

    wait_until(kill_who_is_due)


def downloading(trial: Round, environ: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start the child process that downloads, as a worker does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.store.download"],
        env={**environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin
    with process.stdin:
        process.stdin.write(ORDER.dump_json(Order([trial.wanted], trial.places)))
    return process


@dataclass(frozen=True)
class Replaced:
    """The outcome for two workers that waited while another one was killed."""

    statuses: list[int]
    outputs: list[str]
    sent: int
    found: dict[str, str]
    held: list[str]


def replaced(source: Path, base: Path) -> Replaced:
    """Kill a worker while two others wait for what it downloads."""
    with hub_with(source) as served, ExitStack() as stack:

        def start(name: str) -> Background:
            return stack.enter_context(background(PREFETCH, environ(served, base), base / name))

        first = start("first")
        hold(served, source)
        waiting = [start("second"), start("third")]
        for worker in waiting:
            worker.wait_for_output(WAITING)
        first.kill()
        until_then = sent(served)
        wait_until(lambda: sent(served) > until_then)
        served.throttle = None
        statuses = [worker.ended() for worker in waiting]
        there = found(base)
        assert isinstance(there, Found)
        outputs = [worker.output for worker in waiting]
        return Replaced(statuses, outputs, sent(served), contents(there.place), leases(base))


def test_they_died_at_moments_all_over_the_download(rounds: list[Round], source: Path) -> None:
    parts = [trial.sent / size(source) for trial in rounds if trial.killed]
    assert len(parts) > ROUNDS / 2
    assert [part for part in parts if part < 0.4]
    assert [part for part in parts if part > 0.7]


def test_what_a_dead_worker_leaves_is_trusted_only_if_it_is_complete(
    rounds: list[Round], source: Path
) -> None:
    trusted = [trial.trusted for trial in rounds if trial.trusted is not None]
    assert len(trusted) < ROUNDS
    assert all(left == contents(source) for left in trusted)


def test_the_next_start_completes_it_to_the_byte(rounds: list[Round], source: Path) -> None:
    right = contents(source)
    assert all(contents(trial.place) == right for trial in rounds)


def test_no_byte_is_sent_more_than_once_more_than_needed(
    rounds: list[Round], served: Hub, source: Path
) -> None:
    for trial in rounds:
        for name in contents(source):
            assert served.most_often(trial.wanted.model, name) <= 2


def test_what_a_dead_worker_has_brought_is_not_sent_again(
    rounds: list[Round], served: Hub, source: Path
) -> None:
    again = [sent(served, trial.wanted.model) / size(source) - 1 for trial in rounds]
    # Only the bytes on their way are lost.
    assert sum(again) / ROUNDS < 0.2


def test_a_dead_worker_is_replaced_by_one_that_waits(
    dead: Callable[[str], Replaced], source: Path
) -> None:
    result = dead("replaced")
    assert result.statuses == [0, 0]
    assert result.found == contents(source)
    assert result.held == []
    assert result.sent < 1.5 * size(source)


def test_a_worker_that_waits_shows_how_far_the_other_one_has_come(
    dead: Callable[[str], Replaced],
) -> None:
    assert all(PROGRESS.search(output) for output in dead("replaced").outputs)
