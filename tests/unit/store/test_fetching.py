"""What is not on the disk is obtained by a child process, which ends at once when it has to."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter
from support import ROOT
from support.hub.caches import NAME, WANTED, WEIGHTS, On, cached, same
from support.hub.server import MEMBER, blob, commit
from support.processes.background import wait_until

from worker.errors import StartFailed
from worker.store import Found, Kind, NotFound, Origin, Reason, Unavailable, Wanted, resolve
from worker.store import fetching as module
from worker.store.download.__main__ import warn_of_own_disk
from worker.store.fetching import ORDER, Fetching, Order
from worker.volume.lease import Claim

TOKENIZER = Wanted(NAME, kind=Kind.TOKENIZER, load_format="dummy")


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


def owner(on: On, has_begun: Callable[[], object] | None = None) -> int:
    """Wait until some of the weights are on the disk; return the process that downloads them."""
    wait_until(has_begun or (lambda: partial(on).exists() and partial(on).stat().st_size))
    lease = on.folder / ".worker" / "lease-1"
    return TypeAdapter(Claim).validate_json(lease.read_bytes()).pid


def handed_back(on: On) -> bool:
    """Return whether another worker could continue at once with what has been downloaded."""
    free = not [*(on.folder / ".worker").glob("lease-*")]
    begun = partial(on).stat().st_size > 0
    return free and begun and isinstance(resolve(WANTED, on.places), NotFound)


def test_for_what_is_on_disk_no_process_is_started(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = cached(on.places.volume, on.source, listed=True)
    started: list[object] = []
    monkeypatch.setattr(module, "_start_child", lambda *_: started.append(_))
    with begun(on, WANTED, Wanted(str(on.source))) as fetching:
        found = fetching.result()
    assert [model.place for model in found.values()] == [snapshot, on.source]
    assert started == []
    with begun(on, Wanted("org/other")):
        assert len(started) == 1


def test_another_process_says_where_all_of_it_is(on: On) -> None:
    here = Wanted(str(on.source))
    # It has the environment that it is given.
    on.hub.repositories[NAME].gated = True
    with begun(on, WANTED, TOKENIZER, here, HF_TOKEN=MEMBER) as fetching:
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
    assert why.reason is Reason.REVISION_MISSING
    assert (why.problem, why.remedy) == (expected.problem, expected.remedy)


@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGKILL, "was killed before it was complete"), (signal.SIGTERM, "ended before it")],
)
def test_a_download_ended_from_outside_is_reported(on: On, number: int, message: str) -> None:
    on.hub.stalled = {WEIGHTS}
    with begun(on) as fetching:
        os.kill(owner(on), number)
        with pytest.raises(StartFailed, match=message):
            fetching.result()
    # One that is killed can't hand anything back.
    assert handed_back(on) is (number == signal.SIGTERM)


def test_a_download_that_is_asked_to_stop_does_not_wait_for_a_hub_that_hangs(on: On) -> None:
    on.hub.hangs = True
    with begun(on) as fetching:
        os.kill(owner(on, lambda: on.hub.requests), signal.SIGTERM)
        # Not the refusal that a hub which doesn't answer ends with.
        with pytest.raises(StartFailed, match="ended before it was complete"):
            fetching.result()
    assert not [*on.folder.glob(".worker/lease-*")]


def test_a_download_that_nobody_wants_any_more_ends(on: On) -> None:
    on.hub.stalled = {WEIGHTS}
    with begun(on) as one, begun(on, Wanted("org/none")):
        pid = owner(on)
        one.close()
        assert not psutil.pid_exists(pid)
        assert handed_back(on)


def test_a_download_does_not_outlive_the_process_that_wanted_it(on: On) -> None:
    on.hub.stalled = {WEIGHTS}
    program = (
        "import os, sys\n"
        "from worker.store.fetching import ORDER, Fetching\n"
        "order = ORDER.validate_json(sys.argv[1])\n"
        "Fetching(order.wanted, order.places, os.environ).result()\n"
    )
    order = ORDER.dump_json(Order([WANTED], on.places))
    variables = environ(on, PYTHONPATH=str(ROOT / "src"))
    parent = subprocess.Popen([sys.executable, "-c", program, order], env=variables)
    try:
        pid = owner(on)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not psutil.pid_exists(pid))
    assert handed_back(on)


def test_a_cache_on_the_containers_own_disk_is_warned_of_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path.stat().st_dev == Path("/").stat().st_dev
    warn_of_own_disk(tmp_path / "not" / "there" / "yet")
    assert ("each worker downloads for itself" in caplog.text) is own
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == Path("/").stat().st_dev:
        pytest.skip("there is no other disk here")
    caplog.clear()
    warn_of_own_disk(shared / "not" / "there")
    assert not caplog.text


def test_looking_imports_nothing_of_the_hubs_and_none_of_the_engines() -> None:
    program = (
        "import sys, worker.store, worker.store.fetching, worker.engine.start.repositories\n"
        "print({'huggingface_hub', 'vllm', 'torch', 'httpx2'} & sys.modules.keys())"
    )
    environ = {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environ) == b"set()\n"
