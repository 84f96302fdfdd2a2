"""What a job waits for: a worker that may live, lines that run, and nothing longer than needed."""

import asyncio
from pathlib import Path

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
    monkeypatch.setattr("worker.batches.runner.LOOK_S", 0.01)
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


async def test_lines_that_run_when_the_time_is_over_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.runner.SPARE_S", 0.0)
    with ScriptedEngine(*tokens("a", "b", pause=2.5)) as engine:
        engine.slots = 4
        worker = worker_at(tmp_path, engine)
        spec = {"requests": lines(50), "endpoint": CHAT, "max_runtime_sec": 1}
        found = await answered(worker, {"batch": spec})
    assert found["batch"]["request_counts"]["completed"] == len(engine.asked) > 0
    assert engine.aborted == []


async def test_lines_that_run_for_long_after_the_time_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.runner.SPARE_S", 0.0)
    monkeypatch.setattr("worker.batches.shard.PATIENCE_S", 0.5)
    with ScriptedEngine(*tokens("a", "b", pause=600.0)) as engine:
        worker = worker_at(tmp_path, engine)
        spec = {"requests": lines(5), "endpoint": CHAT, "max_runtime_sec": 1}
        found = await answered(worker, {"batch": spec})
        assert await until(lambda: len(engine.aborted) == 5)
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
