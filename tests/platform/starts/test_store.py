"""Workers as processes with one volume: who downloads, who waits, and how a download ends.

Why a model is unavailable, and what is repaired, tests/unit/store shows.
"""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.disks import fill, mounted
from support.hub.downloads import (
    HARDLY,
    NAME,
    PREFETCH,
    SLOWLY,
    TOKEN,
    assert_ends,
    assert_prefetched,
    assert_refused,
    contents,
    environ,
    found,
    hold,
    leases,
    sent,
    sent_once,
    size,
)
from support.hub.server import MEMBER, Hub
from support.processes.background import background, wait_until
from support.processes.commands import run

from worker.store import Found, NotFound

WAITING = "another worker downloads it"
SHARD = "model-00002-of-00003.safetensors"
# Bytes of a small disk.
ROOM = 8_000_000


def test_eight_workers_that_start_together_download_every_file_once(
    hub: Hub, model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    hub.throttle = HARDLY
    with ExitStack() as stack:
        workers = [
            stack.enter_context(background(PREFETCH, environ(hub, volume), tmp_path / f"log-{n}"))
            for n in range(8)
        ]
        wait_until(lambda: sum(WAITING in worker.output for worker in workers) == 7)
        assert not isinstance(found(volume), Found)
        hub.throttle = None
        assert [worker.ended() for worker in workers] == [0] * 8
    assert sent_once(hub, model_repository)
    there = found(volume)
    assert isinstance(there, Found)
    assert contents(there.place) == contents(model_repository)
    line = f"commit {str(there.commit)[:12]}: {there.place}"
    assert all(line in worker.output for worker in workers)


def test_a_prefetch_that_is_terminated_hands_over_at_once(
    hub: Hub, model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    with background(PREFETCH, environ(hub, volume), tmp_path / "log") as worker:
        hold(hub, model_repository)
        assert_ends(worker, volume)
    assert not isinstance(found(volume), Found)
    hub.throttle = None
    # It did not wait for a lease that has no holder any more.
    assert WAITING not in assert_prefetched(hub, model_repository, volume).stderr
    assert sent(hub) < 1.5 * size(model_repository)


def test_a_disk_that_fills_up_during_a_download_is_reported_and_the_files_are_kept(
    hub: Hub, model_repository: Path, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", ROOM) as disk:
        with background(PREFETCH, environ(hub, disk), tmp_path / "log") as worker:
            hold(hub, model_repository)
            filler = fill(disk)
            hub.throttle = SLOWLY
            assert worker.ended() == 1
        assert "not enough room" in worker.output
        assert "BASE_PATH" in worker.output
        assert "Traceback" not in worker.output
        assert not isinstance(found(disk), Found)
        hub.throttle = None
        filler.unlink()
        assert WAITING not in assert_prefetched(hub, model_repository, disk).stderr
    assert sent(hub) < 1.5 * size(model_repository)


def test_trouble_is_reported_in_a_line_and_once_it_is_over_the_next_start_succeeds(
    hub: Hub, model_repository: Path, volume: Path
) -> None:
    hub.wrong.add(SHARD)
    ran = run(environ(hub, volume), *PREFETCH)
    assert_refused(ran, NAME, "not what it announces", "MODEL_REVISION")
    assert (type(found(volume)), leases(volume)) == (NotFound, [])
    hub.wrong.clear()
    assert_prefetched(hub, model_repository, volume)


# Two starts each.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"HF_TOKEN": TOKEN}, ("refuses HF_TOKEN", "set HF_TOKEN")),
        ({}, ("gated", "HF_TOKEN is not set", "licence")),
        ({"HF_TOKEN": MEMBER, "HF_ENDPOINT": "<nobody>"}, ("does not answer", "HF_ENDPOINT")),
    ],
    ids=["a wrong token", "no token", "no network"],
)
def test_no_token_is_shown_whether_the_hub_refuses_it_or_not(
    settings: dict[str, str],
    named: tuple[str, ...],
    hub: Hub,
    model_repository: Path,
    volume: Path,
) -> None:
    hub.repositories[NAME].gated = True
    with socket.socket() as closed:
        # Nobody else gets the port, and who connects is refused.
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        settings = {name: text.replace("<nobody>", nobody) for name, text in settings.items()}
        refused = run(environ(hub, volume, **settings), *PREFETCH)
    assert_refused(refused, NAME, *named)
    ran = assert_prefetched(hub, model_repository, volume, HF_TOKEN=MEMBER)
    assert MEMBER not in refused.stdout + refused.stderr + ran.stdout + ran.stderr
