"""Workers that are killed during a download: their partial files are continued, and not trusted."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

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

from worker.store import Found, Places, Wanted, resolve
from worker.store.fetching import ORDER, Fetching, Order

# Others wait 15 s for a worker that was killed.
pytestmark = pytest.mark.slow

WAITING = "another worker downloads it"
PROGRESS = re.compile(f"{WAITING}: [0-9.]+[kM]?B of [0-9.]+MB")
ROUNDS = 20
# Of all rounds together, in bytes per second.
THROTTLE = 6_000_000


@pytest.fixture(scope="module")
def model_repository(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("source") / "files", demo_model, shards=4)


@pytest.fixture(scope="module")
def hub(model_repository: Path) -> Iterator[Hub]:
    with hub_with(model_repository) as running:
        yield running


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
    place: Path = Path()

    def start(self, environ: dict[str, str]) -> "subprocess.Popen[bytes]":
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
            process.stdin.write(ORDER.dump_json(Order([self.wanted], self.places)))
        return process

    def kill(self, process: "subprocess.Popen[bytes]", hub: Hub, model_repository: Path) -> None:
        """Kill the process; note what it leaves."""
        time.sleep(max(0, self.moment - 1))
        self.killed = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.sent = sent(hub, self.wanted.model)
        # By the commit, which needs no ref.
        left = resolve(replace(self.wanted, revision=commit(model_repository)), self.places)
        self.trusted = contents(left.place) if isinstance(left, Found) else None


@pytest.fixture(scope="module")
def rounds(
    hub: Hub, model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Round]:
    """Run all rounds, side by side."""
    folder, moments = tmp_path_factory.mktemp("volumes"), Random(155)
    rounds = []
    for number in range(ROUNDS):
        hub.add(f"org/{number}", model_repository)
        places = Places(folder / str(number), folder / "nothing")
        rounds.append(Round(Wanted(f"org/{number}"), places, moments.uniform(0, 1.05)))
    environ = {**HOME, "HF_HOME": str(folder), "HF_ENDPOINT": hub.endpoint}
    hub.throttle = THROTTLE
    running = [(trial, trial.start(environ)) for trial in rounds]
    fetching: list[tuple[Round, Fetching]] = []

    def kill_who_is_due() -> bool:
        for trial, process in tuple(running):
            if sent(hub, trial.wanted.model) >= min(trial.moment, 1) * size(model_repository):
                trial.kill(process, hub, model_repository)
                fetching.append((trial, Fetching([trial.wanted], trial.places, environ)))
                running.remove((trial, process))
        return not running

    wait_until(kill_who_is_due)
    hub.throttle = None
    for trial, others in fetching:
        trial.place = others.result()[trial.wanted].place
    return rounds


def test_they_died_at_moments_all_over_the_download(
    rounds: list[Round], model_repository: Path
) -> None:
    parts = [trial.sent / size(model_repository) for trial in rounds if trial.killed]
    assert len(parts) > ROUNDS / 2
    assert (min(parts) < 0.4, max(parts) > 0.7) == (True, True)


def test_what_a_dead_worker_leaves_is_trusted_only_if_it_is_complete(
    rounds: list[Round], model_repository: Path
) -> None:
    trusted = [trial.trusted for trial in rounds if trial.trusted is not None]
    assert len(trusted) < ROUNDS
    assert all(left == contents(model_repository) for left in trusted)


def test_the_next_start_completes_it_to_the_byte_and_little_is_sent_again(
    rounds: list[Round], hub: Hub, model_repository: Path
) -> None:
    right = contents(model_repository)
    assert all(contents(trial.place) == right for trial in rounds)
    assert all(hub.most_often(trial.wanted.model, name) <= 2 for trial in rounds for name in right)
    # Only the bytes on their way are lost.
    all_sent = sum(sent(hub, trial.wanted.model) for trial in rounds)
    assert all_sent < 1.2 * ROUNDS * size(model_repository)


def test_a_dead_worker_is_replaced_by_one_that_waits_and_shows_how_far_it_had_come(
    model_repository: Path, tmp_path: Path
) -> None:
    with hub_with(model_repository) as hub, ExitStack() as stack:

        def start(name: str) -> Background:
            command = background(PREFETCH, environ(hub, tmp_path), tmp_path / name)
            return stack.enter_context(command)

        first = start("first")
        hold(hub, model_repository)
        waiting = [start("second"), start("third")]
        for worker in waiting:
            worker.wait_for_output(WAITING)
        first.kill()
        until_then = sent(hub)
        wait_until(lambda: sent(hub) > until_then)
        hub.throttle = None
        assert [worker.ended() for worker in waiting] == [0, 0]
        assert all(PROGRESS.search(worker.output) for worker in waiting)
        there = found(tmp_path)
        assert isinstance(there, Found)
        assert contents(there.place) == contents(model_repository)
        assert leases(tmp_path) == []
        assert sent(hub) < 1.5 * size(model_repository)
