"""Workers that are killed during a download: their partial files are continued, and not trusted."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from support import ROOT
from support.hub.downloads import (
    contents,
    hub_with,
    repository,
    sent,
    size,
)
from support.hub.server import Hub, commit
from support.processes.background import wait_until
from support.processes.commands import HOME

from worker.store import Found, Places, Wanted, resolve
from worker.store.fetching import ORDER, Fetching, Order

# Others wait 15 s for a worker that was killed.
pytestmark = pytest.mark.slow

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


class Killed(NamedTuple):
    """One volume, on which a worker was killed in its download, and another has completed it.

    ``trusted`` are the files that a worker would have loaded of what the dead one had left.
    """

    name: str
    sent: int
    trusted: dict[str, str] | None
    completed: dict[str, str]


def start(wanted: Wanted, places: Places, environ: dict[str, str]) -> "subprocess.Popen[bytes]":
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
        process.stdin.write(ORDER.dump_json(Order([wanted], places)))
    return process


@pytest.fixture(scope="module")
def killed(
    hub: Hub, model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Killed]:
    """Kill workers side by side, each after a random part of the bytes; complete what they left."""
    folder, rng = tmp_path_factory.mktemp("volumes"), Random(155)
    environ = {**HOME, "HF_HOME": str(folder), "HF_ENDPOINT": hub.endpoint}
    hub.throttle = THROTTLE
    running = []
    for number in range(ROUNDS):
        hub.add(f"org/{number}", model_repository)
        wanted = Wanted(f"org/{number}")
        places = Places(folder / str(number), folder / "nothing")
        due = min(rng.uniform(0, 1.05), 1) * size(model_repository)
        running.append((due, wanted, places, start(wanted, places, environ)))
    left = []

    def kill_who_is_due() -> bool:
        for trial in tuple(running):
            due, wanted, places, process = trial
            if sent(hub, wanted.model) >= due:
                process.kill()
                process.communicate()
                # By the commit, which needs no ref.
                there = resolve(replace(wanted, revision=commit(model_repository)), places)
                trusted = contents(there.place) if isinstance(there, Found) else None
                left.append((wanted, places, sent(hub, wanted.model), trusted))
                running.remove(trial)
        return not running

    wait_until(kill_who_is_due)
    hub.throttle = None
    others = [Fetching([wanted], places, environ) for wanted, places, *_ in left]
    return [
        Killed(wanted.model, before, trusted, contents(other.result()[wanted].place))
        for (wanted, _, before, trusted), other in zip(left, others, strict=True)
    ]


def test_what_a_dead_worker_leaves_is_trusted_only_if_it_is_complete(
    killed: list[Killed], model_repository: Path
) -> None:
    parts = [one.sent / size(model_repository) for one in killed]
    assert (min(parts) < 0.4, max(parts) > 0.7) == (True, True)
    trusted = [one.trusted for one in killed if one.trusted is not None]
    assert len(trusted) < ROUNDS
    assert all(files == contents(model_repository) for files in trusted)


def test_the_next_start_completes_it_to_the_byte_and_little_is_sent_again(
    killed: list[Killed], hub: Hub, model_repository: Path
) -> None:
    right = contents(model_repository)
    assert all(one.completed == right for one in killed)
    assert all(hub.most_often(one.name, file) <= 2 for one in killed for file in right)
    # Only the bytes on their way are lost.
    assert sum(sent(hub, one.name) for one in killed) < 1.2 * ROUNDS * size(model_repository)
