"""Which batches there are, which files they need, and when they are removed."""

import os
import time
from pathlib import Path

import pytest
from support.batches import as_text, batch_of, lines, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, settings, tokens

from worker.batches.request import kept
from worker.batches.store import PREFIX, Batches
from worker.job.batch import CreateBatch
from worker.volume import ids
from worker.volume.record import DAY_S


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    return Batches.of(settings(FILES_PATH=str(tmp_path), FILES_RETENTION_DAYS="30"))


def left(batches: Batches) -> tuple[str, str]:
    """Create a batch that nobody runs; return its id, and its input's."""
    file = batches.files.receive([as_text(lines(1))], filename="a", purpose="batch")
    request = CreateBatch(endpoint=CHAT, input_file_id=file.id)
    return batches.create(kept(request, ids.new(PREFIX), file.id)).id, file.id


async def ended(root: Path) -> str:
    with ScriptedEngine(*tokens("a")) as engine:
        batch = await batch_of(worker_at(root, engine), requests=lines(1), endpoint=CHAT)
    return str(batch["id"])


async def test_what_somebody_has_to_run_and_its_inputs_are_known(
    tmp_path: Path, batches: Batches
) -> None:
    done = await ended(tmp_path)
    waiting, file = left(batches)
    assert {batch.id for batch in batches.all()} == {done, waiting}
    assert [batch.id for batch in batches.unfinished()] == [waiting]
    assert batches.inputs_in_use() == {file}


@pytest.mark.parametrize(("days", "removed"), [(1.0, 0), (30.9, 0), (31.1, 1), (400.0, 1)])
async def test_a_batch_is_removed_when_it_expired_as_long_ago_as_files_are_kept(
    tmp_path: Path,
    batches: Batches,
    monkeypatch: pytest.MonkeyPatch,
    days: float,
    removed: int,
) -> None:
    id = await ended(tmp_path)
    # Its window is a day.
    later = batches.get(id).created_at + days * DAY_S
    monkeypatch.setattr(time, "time", lambda: later)
    assert batches.sweep() == removed
    assert len(batches.all()) == 1 - removed
    assert (tmp_path / "worker" / "batches" / id).exists() == (not removed)


async def test_a_batch_that_somebody_may_run_is_not_removed(
    tmp_path: Path, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await ended(tmp_path)
    lease = batches.get(id).leases("shard-0") / "lease-1"
    lease.parent.mkdir(parents=True, exist_ok=True)
    lease.touch()
    later = time.time() + 400 * DAY_S
    os.utime(lease, (later, later))
    monkeypatch.setattr(time, "time", lambda: later)
    assert batches.sweep() == 0
    lease.unlink()
    assert batches.sweep() == 1


async def test_with_a_retention_of_0_nothing_is_ever_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended(tmp_path)
    batches = Batches.of(settings(FILES_PATH=str(tmp_path), FILES_RETENTION_DAYS="0"))
    later = time.time() + 4_000 * DAY_S
    monkeypatch.setattr(time, "time", lambda: later)
    assert batches.sweep() == 0
    assert len(batches.all()) == 1
