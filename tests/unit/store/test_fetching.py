"""What is not on the disk is obtained by a child process, which ends at once when it has to."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from support import ROOT
from support.hub.caches import NAME, WANTED, WEIGHTS, On, cached, hub_and_volume, same
from support.hub.server import MEMBER, blob, commit

from worker.errors import StartFailed
from worker.store import Found, Kind, NotFound, Origin, Places, Reason, Unavailable, Wanted, resolve
from worker.store import fetching as module
from worker.store.download.__main__ import warn_of_own_disk
from worker.store.fetching import ORDER, Fetching, Order, end_all
from worker.volume.lease import Claim

SOURCES = ROOT / "src"
TOKENIZER = Wanted(NAME, kind=Kind.TOKENIZER, load_format="dummy")


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    with hub_and_volume(tmp_path, monkeypatch) as both:
        yield both


def environ(on: On, **more: str) -> dict[str, str]:
    """Return the environment of a child whose connections may send nothing for hours."""
    fixed = {"PATH": os.environ["PATH"], "HOME": "/", "HF_HUB_DOWNLOAD_TIMEOUT": "10000"}
    return {**fixed, "HF_ENDPOINT": on.hub.endpoint, **more}


@contextmanager
def begun(on: On, *wanted: Wanted, newest: bool = False, **more: str) -> Iterator[Fetching]:
    """Begin to obtain the model, or what else is wanted; leaving ends the child."""
    fetching = Fetching(wanted or [WANTED], on.places, environ(on, **more), newest)
    try:
        yield fetching
    finally:
        fetching.close()


def partial(on: On) -> Path:
    return on.folder / "blobs" / f"{blob(on.source / WEIGHTS)}.partial"


def owner(on: On) -> int:
    """Wait until some of the weights are on the disk; return the process that downloads them."""
    lease = on.folder / ".worker" / "lease-1"
    deadline = time.monotonic() + 60
    while not (partial(on).exists() and partial(on).stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return TypeAdapter(Claim).validate_json(lease.read_bytes()).pid


def gone(pid: int) -> bool:
    """Wait until a process has ended; return whether it has."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def handed_back(on: On) -> bool:
    """Return whether another worker could continue at once with what has been downloaded."""
    free = not [*(on.folder / ".worker").glob("lease-*")]
    begun = partial(on).stat().st_size > 0
    return free and begun and isinstance(resolve(WANTED, on.places), NotFound)


def test_for_what_is_on_the_disk_no_process_is_started(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = cached(on.places.volume, on.source, listed=True)
    started: list[object] = []
    monkeypatch.setattr(module, "_start_child", lambda *_: started.append(_))
    with begun(on, WANTED, Wanted(str(on.source))) as fetching:
        found = fetching.result()
    assert [(model.place, model.origin) for model in found.values()] == [
        (snapshot, Origin.VOLUME),
        (on.source, Origin.DIRECTORY),
    ]
    assert started == []
    with begun(on, Wanted("org/other")):
        assert len(started) == 1


def test_another_process_says_where_everything_is(on: On) -> None:
    here = Wanted(str(on.source))
    with begun(on, WANTED, TOKENIZER, here) as fetching:
        found = fetching.result()
        assert fetching.result() is found
    place = on.folder / "snapshots" / commit(on.source)
    assert found[here] == Found(here, on.source, Origin.DIRECTORY)
    model = found[WANTED]
    assert (model.place, model.origin, model.commit) == (place, Origin.DOWNLOAD, place.name)
    assert model.passed[1] == f"volume: it does not have {NAME}"
    assert found[TOKENIZER].place == place
    same(model, on.source)
    # The hub was not asked for its list of coding agents.
    assert all(NAME in path for _, path, _ in on.hub.requests)


def test_an_order_reaches_the_other_process_whole() -> None:
    wanted = Wanted("a/b", "v1", "pt", Path("/d"), Kind.ADAPTER, True, True, "LORA_MODULES")
    order = Order([wanted], Places(Path("/v")), True)
    read = ORDER.validate_json(ORDER.dump_json(order))
    assert read == order
    assert read.wanted[0].setting == "LORA_MODULES"


def test_the_newest_is_asked_for_although_there_is_one(on: On) -> None:
    cached(on.places.volume, on.source, listed=True)
    with begun(on, newest=True) as fetching:
        assert fetching.result()[WANTED].origin is Origin.VOLUME
    assert on.hub.requests


def test_why_something_can_not_be_had_crosses_the_processes(on: On) -> None:
    wanted = Wanted(NAME, "v9", setting="EMBEDDING_MODEL_NAME")
    expected = on.refused(wanted)
    with begun(on, wanted) as fetching, pytest.raises(Unavailable) as raised:
        fetching.result()
    why = raised.value
    assert (why.reason, why.problem, why.remedy, why.message) == (
        Reason.REVISION_MISSING,
        expected.problem,
        expected.remedy,
        expected.message,
    )


def test_the_other_process_has_the_environment_that_it_is_given(on: On) -> None:
    on.hub.repositories[NAME].gated = True
    with begun(on, HF_TOKEN=MEMBER) as fetching:
        same(fetching.result()[WANTED], on.source)


def test_a_log_mentions_a_disk_that_is_no_volume(on: On, capfd: pytest.CaptureFixture[str]) -> None:
    with begun(on) as fetching:
        fetching.result()
    here = on.places.volume.stat().st_dev == Path("/").stat().st_dev
    warning = f"{on.places.volume} is no network volume: each worker downloads for itself"
    assert (warning in capfd.readouterr().err) is here


def test_a_download_that_is_killed_is_reported(on: On) -> None:
    on.hub.stalled = {WEIGHTS}
    with begun(on) as fetching:
        os.kill(owner(on), signal.SIGKILL)
        with pytest.raises(StartFailed, match="was killed before it was complete"):
            fetching.result()


def test_who_does_not_want_it_any_more_ends_it_at_once(on: On) -> None:
    on.hub.stalled = {WEIGHTS}
    with begun(on) as fetching:
        pid = owner(on)
        fetching.close()
        assert not Path(f"/proc/{pid}").exists()
    assert handed_back(on)


def test_all_downloads_end_together(on: On) -> None:
    on.hub.stalled = {WEIGHTS}
    with begun(on) as one, begun(on, Wanted("org/none")) as other:
        pid = owner(on)
        end_all()
        assert not Path(f"/proc/{pid}").exists()
        assert handed_back(on)
        for fetching in (one, other):
            fetching.close()


def test_a_download_that_is_asked_to_stop_hands_back_what_it_holds(on: On) -> None:
    on.hub.stalled = {WEIGHTS}
    with begun(on) as fetching:
        os.kill(owner(on), signal.SIGTERM)
        with pytest.raises(StartFailed):
            fetching.result()
    assert handed_back(on)


def test_a_download_that_is_asked_to_stop_does_not_wait_for_a_hub_that_hangs(on: On) -> None:
    on.hub.hangs = True
    with begun(on) as fetching:
        lease = on.folder / ".worker" / "lease-1"
        deadline = time.monotonic() + 60
        while not on.hub.requests:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(TypeAdapter(Claim).validate_json(lease.read_bytes()).pid, signal.SIGTERM)
        # Not the refusal that a hub which doesn't answer ends with.
        with pytest.raises(StartFailed, match="ended before it was complete"):
            fetching.result()
    assert not lease.exists()


def test_a_download_does_not_outlive_the_process_that_wanted_it(on: On) -> None:
    on.hub.stalled = {WEIGHTS}
    program = (
        "import os, sys\n"
        "from worker.store.fetching import ORDER, Fetching\n"
        "order = ORDER.validate_json(sys.argv[1])\n"
        "Fetching(order.wanted, order.places, os.environ).result()\n"
    )
    order = ORDER.dump_json(Order([WANTED], on.places))
    parent = subprocess.Popen(
        [sys.executable, "-c", program, order], env=environ(on, PYTHONPATH=str(SOURCES))
    )
    try:
        pid = owner(on)
    finally:
        parent.kill()
        parent.wait()
    assert gone(pid)
    assert handed_back(on)


def test_a_cache_on_the_containers_own_disk_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_own_disk(tmp_path / "not" / "there" / "yet")
    assert "each worker downloads for itself" in caplog.text


def test_a_cache_on_another_disk_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == Path("/").stat().st_dev:
        pytest.skip("there is no other disk here")
    warn_of_own_disk(shared / "not" / "there")
    assert not caplog.text
