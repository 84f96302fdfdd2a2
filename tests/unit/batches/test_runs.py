"""A batch runs in a job: each line is answered once, whoever runs it and however often."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from support.batches import Batching, batch_of, line, lines, of_lines, refused, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, replying, settings, tokens
from support.processes.background import eventually

from worker.app import Worker
from worker.batches.step import SPARE_S
from worker.errors import EngineDead, RefusedByEngine
from worker.long_work.kinds import LongWork


def completed(count: int, failed: int = 0) -> dict[str, int]:
    return {"total": count + failed, "completed": count, "failed": failed}


async def test_every_line_is_answered_in_the_order_of_the_input(batching: Batching) -> None:
    batching.engine.counted = (3, 2)
    batch = await batching.run(**of_lines(700))
    assert (batch["status"], batch["request_counts"]) == ("completed", completed(700))
    usage = batch["usage"]
    tokens_of = (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"])
    assert tokens_of == (2100, 1400, 3500)
    assert batch["error_file_id"] is None
    output, _ = batching.results(batch)
    assert list(output) == [f"c{index}" for index in range(700)]
    first = output["c0"]
    assert (first["error"], first["response"]["status_code"]) == (None, 200)
    assert first["response"]["body"]["choices"][0]["message"]["content"] == "a"
    assert first["id"] == first["response"]["request_id"] != output["c1"]["id"]


async def test_lines_that_fail_are_in_the_error_file_and_fail_no_batch(batching: Batching) -> None:
    wrong = line("wrong", messages=5)
    batch = await batching.run(requests=[*lines(2), wrong], endpoint=CHAT)
    all_wrong = await batching.run("job-2", requests=[wrong], endpoint=CHAT)
    output, errors = batching.results(batch)
    assert (list(output), list(errors)) == (["c0", "c1"], ["wrong"])
    response = errors["wrong"]["response"]
    assert (response["status_code"], errors["wrong"]["error"]) == (400, None)
    assert "messages" in response["body"]["error"]["message"]
    assert batch["request_counts"] == completed(2, failed=1)
    assert (all_wrong["status"], all_wrong["output_file_id"]) == ("completed", None)


async def test_an_answer_that_is_no_text_fails_its_line_alone(batching: Batching) -> None:
    half = replying('{"choices": [{"message": {"content": "\\ud800"}}]}')
    with ScriptedEngine(app=half) as engine:
        batch = await batch_of(worker_at(batching.root, engine), **of_lines(1))
    _, errors = batching.results(batch)
    assert errors["c0"]["response"]["status_code"] == 500


@pytest.mark.parametrize(("times", "failed"), [(1, 0), (3, 0), (4, 1)])
async def test_a_line_may_be_tried_again(batching: Batching, times: int, failed: int) -> None:
    batching.engine.script = (RefusedByEngine("full", status=503),)
    running = asyncio.create_task(batching.run(**of_lines(1)))
    await eventually(lambda: len(batching.engine.asked) >= times)
    batching.engine.script = tuple(tokens("a"))
    assert (await running)["request_counts"] == completed(1 - failed, failed)


async def test_a_dead_engine_leaves_the_batch(batching: Batching) -> None:
    with ScriptedEngine(EngineDead()) as dead:
        found = await refused(worker_at(batching.root, dead), {"batch": of_lines(3)})
    assert (found["code"], found["retryable"]) == (503, True)
    assert (await batching.run(**of_lines(3)))["request_counts"] == completed(3)


async def test_lines_wait_for_an_engine_aside(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("worker.batches.shard.LOOK_S", 0.0123)
    monkeypatch.setattr("worker.batches.shard.PAUSES_S", ())
    async with batching.engine.engines.aside(patience_s=0.1):
        monkeypatch.setattr(asyncio, "sleep", noted)
        running = asyncio.create_task(batching.run(**of_lines(3)))
        # Each has been sent away by then, more than once.
        while pauses.count(0.0123) < 10:
            await sleep(0.001)
        assert batching.engine.asked == []
        monkeypatch.setattr(asyncio, "sleep", sleep)
    assert (await running)["request_counts"] == completed(3)


async def test_an_answer_is_noticed_at_once(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_S", "PAUSE_S"):
        monkeypatch.setattr(f"worker.batches.shard.{name}", 3600.0)
    batching.engine.script = tuple(tokens("a", "b", pause=0.01))
    assert (await batching.run(**of_lines(20)))["request_counts"] == completed(20)


async def test_a_job_that_ends_in_the_middle_is_gone_on_with(batching: Batching) -> None:
    running = await batching.begun(100, **of_lines(200))
    durable = (await batching.abandoned(running)).counts().completed
    asked = len(batching.engine.asked)
    assert 60 < durable <= asked < 200
    output, errors = batching.results(await batching.run(**of_lines(200)))
    assert (len(output), errors) == (200, {})
    # Only what was in the engine is computed again.
    assert len(batching.engine.asked) == asked + 200 - durable


async def test_jobs_share_the_shards_of_a_batch(batching: Batching) -> None:
    spec = of_lines(200, data_parallelism=2)
    running = await batching.begun(0, **spec)
    with ScriptedEngine(*tokens("a", "b", pause=0.05)) as other:
        other.slots = 4
        batch = await batch_of(worker_at(batching.root, other), **spec)
    assert (await running)["batch"] == batch
    assert len(batching.results(batch)[0]) == 200
    assert len(batching.engine.asked) + len(other.asked) == 200
    assert min(len(batching.engine.asked), len(other.asked)) > 20


async def test_lines_give_others_room(batching: Batching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.batches.window.CALM_S", 0.2)
    made_room, all_again = asyncio.Event(), asyncio.Event()
    batching.engine.script = (made_room, *tokens("a"))
    batching.worker = worker_at(batching.root, batching.engine, BATCH_CONCURRENCY="64")
    running = asyncio.create_task(batching.run(**of_lines(128)))
    await eventually(lambda: len(batching.engine.generating) == 64)
    other = asyncio.create_task(batching.answered({"prompt": "Hi"}, "other"))
    # Two lines, and the other request.
    await eventually(lambda: len(batching.engine.generating) == 3)
    batching.engine.script = (all_again, *tokens("a"))
    batching.engine.loop.call_soon_threadsafe(made_room.set)
    assert (await other)["choices"]
    await eventually(lambda: len(batching.engine.generating) == 64)
    batching.engine.loop.call_soon_threadsafe(all_again.set)
    output, _ = batching.results(await running)
    assert list(output) == [f"c{index}" for index in range(128)]
    asked = [
        body["messages"][0]["content"] for body in batching.engine.asked if isinstance(body, dict)
    ]
    again = {name for place, name in enumerate(asked) if name in asked[:place]}
    # The oldest stay, and the others are begun again by the same attempt.
    assert again
    assert "c0" not in again
    assert len([*batching.only().parts.glob("*.records")]) == 1


async def test_a_job_that_creates_a_shared_batch_sends_the_others_once(batching: Batching) -> None:
    sent: list[str] = []

    async def start(work: LongWork) -> bool:
        sent.append(work.id)
        return True

    environ = settings(FILES_PATH=str(batching.root))
    batching.worker = Worker(batching.engine.engines, environ, start=start)
    for _ in range(2):
        batch = await batching.run(**of_lines(3, data_parallelism=3))
    assert sent == [batch["id"]] * 2


async def over_once_begun(batching: Batching, monkeypatch: pytest.MonkeyPatch, count: int) -> Any:
    """Run a batch in a job whose time is over as soon as a line runs."""
    passed_s = 0.0
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + passed_s)
    for module in ("batches.step", "batches.shard", "batches.window", "long_work.attempt"):
        monkeypatch.setattr(f"worker.{module}.time", clock)
    job = {"batch": of_lines(count, max_runtime_sec=3600)}
    running = asyncio.create_task(batching.answered(job))
    await eventually(lambda: batching.engine.generating)
    passed_s = 3600 - SPARE_S
    return await running


async def test_lines_that_run_when_the_time_is_over_are_waited_for_and_others_go_on(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.shard.LOOK_S", 0.05)
    batching.engine.script = tuple(tokens("a", "b", pause=0.5))
    found = await over_once_begun(batching, monkeypatch, count=50)
    monkeypatch.undo()
    done = found["batch"]["request_counts"]["completed"]
    assert (done, batching.engine.aborted) == (len(batching.engine.asked), [])
    assert (found["batch"]["status"], 0 < done < 50) == ("in_progress", True)
    batching.engine.script = tuple(tokens("a"))
    batch = (await batching.answered(found["run_with"]["input"], "job-2"))["batch"]
    assert (batch["id"], batch["status"]) == (found["batch"]["id"], "completed")
    assert len(batching.results(batch)[0]) == 50


async def test_lines_that_run_for_too_long_are_given_up(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.shard.PATIENCE_S", 0.5)
    batching.engine.script = tuple(tokens("a", "b", pause=600.0))
    found = await over_once_begun(batching, monkeypatch, count=5)
    await eventually(lambda: len(batching.engine.aborted) == len(batching.engine.asked) > 0)
    assert found["batch"]["status"] == "in_progress"
    assert found["run_with"]["input"] == {"batch": {"id": found["batch"]["id"]}}


async def test_a_worker_that_is_stopped_ends_its_part_in_order(batching: Batching) -> None:
    running = await batching.begun(10, **of_lines(300))
    batching.worker.leave()
    found = await running
    asked = len(batching.engine.asked)
    assert found["batch"]["request_counts"]["completed"] == asked < 300
    batching.engine.script = tuple(tokens("a"))
    batching.worker = worker_at(batching.root, batching.engine)
    batch = (await batching.answered(found["run_with"]["input"], "job-2"))["batch"]
    assert (batch["status"], len(batching.engine.asked)) == ("completed", 300)


async def test_a_cancelled_batch_keeps_what_was_answered(batching: Batching) -> None:
    running = await batching.begun(40, **of_lines(300))
    cancel = {"route": f"/v1/batches/{batching.only().id}/cancel", "method": "POST"}
    found = await batching.answered(cancel, "job-2")
    assert found["status"] in {"cancelling", "cancelled"}
    batch = (await running)["batch"]
    expect_cut(batching, batch, "cancelled")
    assert (await batching.refused(cancel, "job-3"))["code"] == 409


async def test_an_expired_batch_keeps_answers(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await batching.begun(40, **of_lines(300, completion_window="1h"))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    expect_cut(batching, (await running)["batch"], "expired")


def expect_cut(batching: Batching, batch: dict[str, Any], status: str) -> None:
    assert batch["status"] == status
    output, errors = batching.results(batch)
    assert len(output) + len(errors) == 300
    assert len(output) == batch["request_counts"]["completed"] > 0
    assert {one["error"]["code"] for one in errors.values()} == {f"batch_{status}"}
