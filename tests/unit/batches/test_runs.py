"""A batch runs in a job: each line is answered once, whoever runs it and however often."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from support.batches import (
    answered,
    batch_of,
    begun,
    given_up,
    line,
    lines,
    only,
    refused,
    results,
    worker_at,
)
from support.engine.scripted import (
    CHAT,
    ScriptedEngine,
    Step,
    replying,
    settings,
    tokens,
    until,
)

from worker.app import Worker
from worker.errors import EngineDead, RefusedByEngine
from worker.job.long_work import LongWork

SLOW = tokens("a", "b", pause=0.05)


async def test_every_line_is_answered_and_the_output_has_the_inputs_order(tmp_path: Path) -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        batch = await batch_of(worker_at(tmp_path, engine), requests=lines(700), endpoint=CHAT)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 700, "completed": 700, "failed": 0}
    assert batch["error_file_id"] is None
    output, _ = results(tmp_path, batch)
    assert list(output) == [f"c{index}" for index in range(700)]
    first = output["c0"]
    assert first["error"] is None
    assert first["response"]["status_code"] == 200
    assert first["response"]["body"]["choices"][0]["message"]["content"] == "ab"
    assert first["id"] == first["response"]["request_id"] != output["c1"]["id"]


async def test_lines_that_fail_stand_in_the_error_file_and_fail_no_batch(tmp_path: Path) -> None:
    wrong = line("wrong", messages=5)
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(tmp_path, engine)
        batch = await batch_of(worker, requests=[*lines(2), wrong], endpoint=CHAT)
        all_wrong = await batch_of(worker, "job-2", requests=[wrong], endpoint=CHAT)
    output, errors = results(tmp_path, batch)
    assert (list(output), list(errors)) == (["c0", "c1"], ["wrong"])
    response = errors["wrong"]["response"]
    assert (response["status_code"], errors["wrong"]["error"]) == (400, None)
    assert "messages" in response["body"]["error"]["message"]
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert (all_wrong["status"], all_wrong["output_file_id"]) == ("completed", None)


async def test_a_job_that_comes_again_has_the_same_batch(tmp_path: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(tmp_path, engine)
        first = await batch_of(worker, requests=lines(3), endpoint=CHAT)
        again = await batch_of(worker, requests=lines(3), endpoint=CHAT)
        other = await batch_of(worker, "job-2", requests=lines(3), endpoint=CHAT)
    assert again == first
    assert other["id"] != first["id"]
    assert len(engine.asked) == 6


async def test_the_usage_is_that_of_all_lines(tmp_path: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        engine.counted = (3, 2)
        batch = await batch_of(worker_at(tmp_path, engine), requests=lines(4), endpoint=CHAT)
    usage = batch["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (12, 8, 20)


async def test_a_job_that_ends_in_the_middle_is_gone_on_with(tmp_path: Path) -> None:
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 4
        worker = worker_at(tmp_path, engine)
        running = await begun(worker, engine, 100, requests=lines(200), endpoint=CHAT)
        durable = (await given_up(tmp_path, engine, running)).counts().completed
        asked = len(engine.asked)
        assert 60 < durable <= asked < 200
        batch = await batch_of(worker, requests=lines(200), endpoint=CHAT)
    output, errors = results(tmp_path, batch)
    assert (len(output), errors) == (200, {})
    # Only what was in the engine is computed again.
    assert len(engine.asked) == asked + 200 - durable


async def test_two_jobs_at_once_answer_each_line_once(tmp_path: Path) -> None:
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 4
        worker = worker_at(tmp_path, engine)
        both = [batch_of(worker, requests=lines(100), endpoint=CHAT) for _ in range(2)]
        first, second = await asyncio.gather(*both)
    assert first == second
    assert len(results(tmp_path, first)[0]) == len(engine.asked) == 100


async def test_jobs_share_the_shards_of_a_batch(tmp_path: Path) -> None:
    with ScriptedEngine(*SLOW) as engine, ScriptedEngine(*SLOW) as other:
        for one in (engine, other):
            one.slots = 4
        workers = [worker_at(tmp_path, one) for one in (engine, other)]
        batches = await asyncio.gather(
            *(
                batch_of(worker, requests=lines(600), endpoint=CHAT, data_parallelism=2)
                for worker in workers
            )
        )
    assert len(results(tmp_path, batches[0])[0]) == 600
    assert len(engine.asked) + len(other.asked) == 600
    assert min(len(engine.asked), len(other.asked)) > 50


async def test_a_job_stops_before_its_time_and_says_how_to_go_on(tmp_path: Path) -> None:
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 2
        worker = worker_at(tmp_path, engine)
        spec = {"requests": lines(300), "endpoint": CHAT, "max_runtime_sec": 32}
        found = await answered(worker, {"batch": spec})
        assert found["batch"]["status"] == "in_progress"
        done = found["batch"]["request_counts"]["completed"]
        assert 0 < done < 300
        engine.script = tuple(tokens("a"))
        batch = (await answered(worker, found["run_with"]["input"], "job-2"))["batch"]
    assert (batch["id"], batch["status"]) == (found["batch"]["id"], "completed")
    assert len(results(tmp_path, batch)[0]) == 300
    assert len(engine.asked) == 300


async def test_lines_make_room_for_other_requests_and_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.window.CALM_S", 0.2)
    with ScriptedEngine(*tokens("a", "b", pause=1.0)) as engine:
        worker = worker_at(tmp_path, engine, BATCH_CONCURRENCY="64")
        running = asyncio.create_task(batch_of(worker, requests=lines(128), endpoint=CHAT))
        assert await until(lambda: len(engine.generating) == 64)
        other = asyncio.create_task(answered(worker, {"prompt": "Hi"}, "other"))
        # Two lines, and the other request.
        assert await until(lambda: len(engine.generating) == 3)
        assert (await other)["choices"]
        assert await until(lambda: len(engine.generating) == 64)
        batch = await running
    assert batch["request_counts"] == {"total": 128, "completed": 128, "failed": 0}
    assert list(results(tmp_path, batch)[0]) == [f"c{index}" for index in range(128)]
    asked = [body["messages"][0]["content"] for body in engine.asked if isinstance(body, dict)]
    again = {name for place, name in enumerate(asked) if name in asked[:place]}
    # The oldest stay, and the others are begun again by the same attempt.
    assert again
    assert "c0" not in again
    assert len([*only(tmp_path).parts.glob("*.records")]) == 1


async def test_a_worker_that_is_stopped_ends_its_part_in_order(tmp_path: Path) -> None:
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 2
        worker = worker_at(tmp_path, engine)
        running = await begun(worker, engine, 10, requests=lines(300), endpoint=CHAT)
        worker.leave()
        found = await running
    asked = len(engine.asked)
    assert found["batch"]["request_counts"]["completed"] == asked < 300
    with ScriptedEngine(*tokens("a")) as engine:
        again = worker_at(tmp_path, engine)
        batch = (await answered(again, found["run_with"]["input"], "job-2"))["batch"]
    assert batch["status"] == "completed"
    assert len(engine.asked) == 300 - asked


async def test_a_cancelled_batch_keeps_what_was_answered(tmp_path: Path) -> None:
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 4
        worker = worker_at(tmp_path, engine)
        running = await begun(worker, engine, 40, requests=lines(300), endpoint=CHAT)
        path = f"/v1/batches/{only(tmp_path).id}/cancel"
        shown = await answered(worker, {"route": path, "method": "POST"}, "job-2")
        assert shown["status"] in {"cancelling", "cancelled"}
        batch = (await running)["batch"]
        again = await refused(worker, {"route": path, "method": "POST"}, "job-3")
    assert batch["status"] == "cancelled"
    output, errors = results(tmp_path, batch)
    assert len(output) + len(errors) == 300
    assert len(output) >= 40
    assert {one["error"]["code"] for one in errors.values()} == {"batch_cancelled"}
    assert again["code"] == 409


async def test_an_expired_batch_keeps_what_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedEngine(*SLOW) as engine:
        engine.slots = 4
        worker = worker_at(tmp_path, engine)
        spec = {"requests": lines(300), "endpoint": CHAT, "completion_window": "1h"}
        running = await begun(worker, engine, 40, **spec)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3601)
        batch = (await running)["batch"]
    assert batch["status"] == "expired"
    output, errors = results(tmp_path, batch)
    assert len(output) + len(errors) == 300
    assert {one["error"]["code"] for one in errors.values()} == {"batch_expired"}


@pytest.mark.parametrize(("times", "failed"), [(1, 0), (3, 0), (4, 1)])
async def test_a_line_is_tried_again_where_that_can_help(
    tmp_path: Path, times: int, failed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.shard.PAUSES_S", (0.3, 0.3, 0.3))
    busy: tuple[Step, ...] = (RefusedByEngine("full", status=503),)
    with ScriptedEngine(*busy) as engine:
        worker = worker_at(tmp_path, engine)
        running = asyncio.create_task(batch_of(worker, requests=lines(1), endpoint=CHAT))
        assert await until(lambda: len(engine.asked) >= times)
        engine.script = tuple(tokens("a"))
        batch = await running
    assert batch["request_counts"] == {"total": 1, "completed": 1 - failed, "failed": failed}


async def test_a_dead_engine_fails_the_job_and_leaves_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.shard.PAUSES_S", (0.01,))
    spec = {"requests": lines(3), "endpoint": CHAT}
    with ScriptedEngine(EngineDead()) as engine:
        found = await refused(worker_at(tmp_path, engine), {"batch": spec})
    assert (found["code"], found["retryable"]) == (503, True)
    with ScriptedEngine(*tokens("a")) as healthy:
        batch = (await answered(worker_at(tmp_path, healthy), {"batch": spec}))["batch"]
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


async def test_a_job_that_creates_a_shared_batch_sends_the_others_once(tmp_path: Path) -> None:
    sent: list[str] = []

    async def start(work: LongWork) -> bool:
        sent.append(work.id)
        return True

    with ScriptedEngine(*tokens("a")) as engine:
        environ = settings(FILES_PATH=str(tmp_path))
        worker = Worker(engine.engines, environ, start=start)
        spec: dict[str, Any] = {"requests": lines(3), "endpoint": CHAT, "data_parallelism": 3}
        batch = await batch_of(worker, **spec)
        await batch_of(worker, **spec)
    assert sent == [batch["id"]] * 2


async def test_an_answer_that_is_no_text_fails_its_line_alone(tmp_path: Path) -> None:
    half = replying('{"choices": [{"message": {"content": "\\ud800"}}]}')
    with ScriptedEngine(app=half) as engine:
        batch = await batch_of(worker_at(tmp_path, engine), requests=lines(1), endpoint=CHAT)
    _, errors = results(tmp_path, batch)
    assert errors["c0"]["response"]["status_code"] == 500
