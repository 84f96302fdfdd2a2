"""What a job waits for: a worker that may live, lines that run, and nothing longer than needed."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.batches import answered, batch_of, lines, results, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, tokens, until

from worker.batches.state import Batch


def dead_workers(root: Path, *names: str) -> list[Path]:
    """Leave leases in the one batch that there is, as a worker does that is killed."""
    (found,) = (root / "worker" / "batches").iterdir()
    places = [Batch(found).leases(name) / "lease-1" for name in names]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text('{"owner": "dead", "host": "other", "pid": 1, "attempt": 1}')
    return places


@pytest.mark.parametrize("names", [("plan",), ("shard-0",), ("end",), ("plan", "shard-0", "end")])
async def test_the_leases_of_a_dead_worker_are_taken_over(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("batches.runner", "volume.turns"):
        monkeypatch.setattr(f"worker.{module}.LOOK_S", 0.01)
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(tmp_path, engine)
        spec = {"requests": lines(3), "endpoint": CHAT}
        # So little time that it only creates the batch.
        created = await answered(worker, {"batch": {**spec, "max_runtime_sec": 1}})
        (tmp_path / "worker" / "batches" / created["batch"]["id"] / "plan.json").unlink()
        leases = dead_workers(tmp_path, *names)
        batch = await batch_of(worker, "job-2", id=created["batch"]["id"])
    assert batch["status"] == "completed"
    assert len(results(tmp_path, batch)[0]) == 3
    assert not any(place.exists() for place in leases)


async def over_once_begun(
    engine: ScriptedEngine, root: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> Any:
    """Run a batch in a job whose time is over as soon as a line runs."""
    passed_s = 0.0
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + passed_s)
    for module in ("runner", "shard", "window"):
        monkeypatch.setattr(f"worker.batches.{module}.time", clock)
    spec = {"requests": lines(count), "endpoint": CHAT, "max_runtime_sec": 3600}
    running = asyncio.create_task(answered(worker_at(root, engine), {"batch": spec}))
    assert await until(lambda: bool(engine.generating))
    passed_s = 3600
    return await running


async def test_lines_that_run_when_the_time_is_over_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.runner.SPARE_S", 0.0)
    with ScriptedEngine(*tokens("a", "b", pause=2.5)) as engine:
        engine.slots = 4
        found = await over_once_begun(engine, tmp_path, monkeypatch, count=50)
    assert found["batch"]["request_counts"]["completed"] == len(engine.asked) > 0
    assert engine.aborted == []


async def test_lines_that_run_for_long_after_the_time_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.runner.SPARE_S", 0.0)
    monkeypatch.setattr("worker.batches.shard.PATIENCE_S", 0.5)
    with ScriptedEngine(*tokens("a", "b", pause=600.0)) as engine:
        found = await over_once_begun(engine, tmp_path, monkeypatch, count=5)
        assert await until(lambda: len(engine.aborted) == len(engine.asked) > 0)
    assert found["batch"]["status"] == "in_progress"
    assert found["run_with"]["input"] == {"batch": {"id": found["batch"]["id"]}}


async def test_a_line_that_has_its_answer_is_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_S", "PAUSE_S"):
        monkeypatch.setattr(f"worker.batches.shard.{name}", 3600.0)
    with ScriptedEngine(*tokens("a", "b", pause=0.01)) as engine:
        engine.slots = 2
        async with asyncio.timeout(120):
            batch = await batch_of(worker_at(tmp_path, engine), requests=lines(20), endpoint=CHAT)
    assert batch["request_counts"]["completed"] == 20


async def test_lines_wait_for_an_engine_that_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.shard.LOOK_S", 0.01)
    monkeypatch.setattr("worker.batches.shard.PAUSES_S", ())
    with ScriptedEngine(*tokens("a")) as engine:
        async with engine.engines.aside(patience_s=0.1):
            worker = worker_at(tmp_path, engine)
            running = asyncio.create_task(batch_of(worker, requests=lines(3), endpoint=CHAT))
            await asyncio.wait([running], timeout=1)
            assert engine.asked == []
        counts = (await running)["request_counts"]
    assert counts == {"total": 3, "completed": 3, "failed": 0}
