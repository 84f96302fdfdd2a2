"""Batches in jobs: every line is answered once, however many jobs run the batch."""

import asyncio
import gc
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.batches import (
    BatchWorker,
    batch_request,
    job_error,
    line,
    lines,
    run_batch,
    worker_with_volume,
)
from support.engine.scripted import CHAT, ScriptedEngine, settings, static_app, tokens
from support.metrics import watch_metrics
from support.processes.background import poll_until
from support.volume import all_records

from worker.app import Worker
from worker.batches.lines import InputLine
from worker.batches.run import WIND_DOWN_S, ShardRun
from worker.errors import EngineDead, OnOtherVolume, RefusedByEngine
from worker.long_work.records import WorkReference
from worker.routes.kinds import KINDS


def request_counts(completed: int, failed: int = 0) -> dict[str, int]:
    return {"total": completed + failed, "completed": completed, "failed": failed}


async def test_every_line_is_answered_in_the_order_of_the_input(batch_worker: BatchWorker) -> None:
    batch_worker.engine.token_counts = (3, 2)
    batch = await batch_worker.run_batch(**batch_request(700))
    assert (batch["status"], batch["request_counts"]) == ("completed", request_counts(700))
    usage = batch["usage"]
    token_counts = (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"])
    assert token_counts == (2100, 1400, 3500)
    assert batch["error_file_id"] is None
    output, _ = batch_worker.results(batch)
    assert list(output) == [f"c{index}" for index in range(700)]
    first = output["c0"]
    assert (first["error"], first["response"]["status_code"]) == (None, 200)
    assert first["response"]["body"]["choices"][0]["message"]["content"] == "a"
    assert first["id"] == first["response"]["request_id"] != output["c1"]["id"]


async def test_failed_lines_are_in_the_error_file_and_do_not_fail_the_batch(
    batch_worker: BatchWorker,
) -> None:
    wrong_line = line("wrong", messages=5)
    completed = watch_metrics("worker_batch_lines_total", result="completed")
    failed = watch_metrics("worker_batch_lines_total", result="failed")
    batch = await batch_worker.run_batch(requests=[*lines(2), wrong_line], endpoint=CHAT)
    all_wrong = await batch_worker.run_batch("job-2", requests=[wrong_line], endpoint=CHAT)
    output, errors = batch_worker.results(batch)
    assert (list(output), list(errors)) == (["c0", "c1"], ["wrong"])
    response = errors["wrong"]["response"]
    assert (response["status_code"], errors["wrong"]["error"]) == (400, None)
    assert "messages" in response["body"]["error"]["message"]
    assert batch["request_counts"] == request_counts(2, failed=1)
    assert (all_wrong["status"], all_wrong["output_file_id"]) == ("completed", None)
    assert (completed(), failed()) == ([2], [2])


async def test_an_answer_that_is_not_valid_text_fails_only_its_line(
    batch_worker: BatchWorker,
) -> None:
    app = static_app('{"choices": [{"message": {"content": "\\ud800"}}]}')
    with ScriptedEngine(app=app) as engine:
        batch = await run_batch(worker_with_volume(batch_worker.root, engine), **batch_request(1))
    _, errors = batch_worker.results(batch)
    assert errors["c0"]["response"]["status_code"] == 500


@pytest.mark.parametrize(("times", "failed"), [(1, 0), (3, 0), (4, 1)])
async def test_a_line_is_retried_up_to_three_times(
    batch_worker: BatchWorker, times: int, failed: int
) -> None:
    batch_worker.engine.script = (RefusedByEngine("full", status=503),)
    task = asyncio.create_task(batch_worker.run_batch(**batch_request(1)))
    await poll_until(lambda: len(batch_worker.engine.requests) >= times)
    batch_worker.engine.script = tuple(tokens("a"))
    assert (await task)["request_counts"] == request_counts(1 - failed, failed)


async def test_a_line_for_an_adapter_on_another_volume_is_not_retried(
    batch_worker: BatchWorker,
) -> None:
    batch_worker.engine.script = (OnOtherVolume("adapter a", "usvolume02", "euvolume01"),)
    outcome = await batch_worker.run_batch(**batch_request(1))
    assert outcome["request_counts"] == request_counts(0, 1)
    assert len(batch_worker.engine.requests) == 1


async def test_a_batch_survives_a_dead_engine(
    batch_worker: BatchWorker, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedEngine(EngineDead()) as dead_engine:
        error = await job_error(
            worker_with_volume(batch_worker.root, dead_engine), {"batch": batch_request(3)}
        )
    assert (error["code"], error["retryable"]) == (503, True)
    # Each line has failed, and the job reports one of the errors.
    gc.collect()
    assert "never retrieved" not in caplog.text
    assert (await batch_worker.run_batch(**batch_request(3)))["request_counts"] == request_counts(3)


async def test_lines_wait_while_the_engine_is_suspended(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def record_pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("worker.batches.run.POLL_S", 0.0123)
    monkeypatch.setattr("worker.batches.run.RETRY_DELAYS_S", ())
    async with batch_worker.engine.engines.suspend(wait_timeout_s=0.1):
        monkeypatch.setattr(asyncio, "sleep", record_pause)
        task = asyncio.create_task(batch_worker.run_batch(**batch_request(3)))
        # By then, the engine has refused every line more than once.
        while pauses.count(0.0123) < 10:
            await sleep(0.001)
        assert batch_worker.engine.requests == []
        monkeypatch.setattr(asyncio, "sleep", sleep)
    assert (await task)["request_counts"] == request_counts(3)


async def test_a_finished_line_of_any_batch_is_noticed_without_polling(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.run.POLL_S", 3600.0)
    batch_worker.engine.script = tuple(tokens("a", "b", pause=0.01))
    runs = [batch_worker.run_batch(f"job-{number}", **batch_request(20)) for number in range(2)]
    for batch in await asyncio.gather(*runs):
        assert batch["request_counts"] == request_counts(20)


@pytest.mark.parametrize(("limit", "value"), [("READ_AHEAD_LINES", 2), ("READ_AHEAD_BYTES", 200)])
async def test_few_lines_are_read_ahead(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    read_ahead, counts = ShardRun._read_ahead, list[int]()

    def count_lines(run: ShardRun, unanswered: Iterator[InputLine]) -> list[InputLine] | None:
        lines = read_ahead(run, unanswered)
        counts.append(len(lines or ()))
        return lines

    monkeypatch.setattr(f"worker.batches.run.{limit}", value)
    monkeypatch.setattr(ShardRun, "_read_ahead", count_lines)
    # A line has more than a hundred bytes.
    assert (await batch_worker.run_batch(**batch_request(5)))["request_counts"] == request_counts(5)
    assert counts == [2, 2, 1, 0]


async def test_another_job_continues_an_interrupted_batch(batch_worker: BatchWorker) -> None:
    task = await batch_worker.start_batch(100, **batch_request(200))
    stored_count = (await batch_worker.interrupt(task)).counts().completed
    request_count = len(batch_worker.engine.requests)
    assert 60 < stored_count <= request_count < 200
    output, errors = batch_worker.results(await batch_worker.run_batch(**batch_request(200)))
    assert (len(output), errors) == (200, {})
    # Only lines that were in the engine are computed again.
    assert len(batch_worker.engine.requests) == request_count + 200 - stored_count


async def test_a_resumed_batch_counts_each_line_once(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.progress.INTERVAL_S", 0.0)
    batch_worker.engine.token_counts = (3, 2)
    requests = lines(99)
    for index in range(99):
        if index % 3:
            requests[index]["body"] = {"messages": 5}
    job = await batch_worker.start_batch(8, requests=requests, endpoint=CHAT)
    batch = await batch_worker.interrupt(job)
    (part,) = batch.parts_directory.iterdir()
    # The worker was killed while it wrote a line.
    part.write_bytes(part.read_bytes()[:-20])
    stored = batch.counts()
    assert (0 < stored.completed < 33, stored.failed > 8) == (True, True)
    reports: list[dict[str, int]] = []

    async def report(_: object, progress: dict[str, int]) -> None:
        reports.append(progress)

    batch_worker.worker = Worker(
        batch_worker.engine.engines, settings(FILES_PATH=str(batch_worker.root)), report
    )
    batch_worker.engine.script = tuple(tokens("a", "b", pause=0.05))
    response = await batch_worker.run_batch("job-2", id=batch.id)
    assert response["request_counts"] == request_counts(33, 66)
    assert response["usage"]["input_tokens"] == 3 * 33
    done = [progress["done"] for progress in reports]
    assert done == sorted(done)
    assert {stored.finished <= each <= 99 for each in done[1:]} == {True}
    assert reports[-1] == {"done": 99, "total": 99, "failed": 66}


async def test_a_worker_that_has_lost_its_lease_changes_no_result(
    batch_worker: BatchWorker,
) -> None:
    job = await batch_worker.start_batch(20, **batch_request(100))
    batch = batch_worker.only_batch()
    # As if the lease had expired because the worker was frozen: it notices this within seconds.
    (lease,) = batch.directory.glob("leases/shard-0/lease-*")
    lease.unlink()
    with ScriptedEngine(*tokens("b")) as other_engine:
        other_engine.slots = 4
        other = worker_with_volume(batch_worker.root, other_engine)
        response = await run_batch(other, "job-2", id=batch.id)
    assert (await job)["batch"] == response
    assert response["request_counts"] == request_counts(100)
    output, errors = batch_worker.results(response)
    assert (list(output), errors) == ([f"c{index}" for index in range(100)], {})
    assert len(batch_worker.engine.requests) + len(other_engine.requests) > 100
    assert len([*batch.parts_directory.iterdir()]) == 2


async def test_jobs_share_the_shards_of_a_batch(batch_worker: BatchWorker) -> None:
    spec = batch_request(200, data_parallelism=2)
    task = await batch_worker.start_batch(0, **spec)
    with ScriptedEngine(*tokens("a", "b", pause=0.05)) as other_engine:
        other_engine.slots = 4
        batch = await run_batch(worker_with_volume(batch_worker.root, other_engine), **spec)
    assert (await task)["batch"] == batch
    assert len(batch_worker.results(batch)[0]) == 200
    assert len(batch_worker.engine.requests) + len(other_engine.requests) == 200
    assert min(len(batch_worker.engine.requests), len(other_engine.requests)) > 20


async def test_a_job_reports_the_lines_that_other_jobs_have_answered(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.progress.INTERVAL_S", 0.0)
    # The other job must not take this one for dead.
    monkeypatch.setattr("worker.long_work.runner.POLL_S", 1.0)
    release, done = asyncio.Event(), [0]

    async def report(_: object, progress: dict[str, int]) -> None:
        done.append(progress["done"])

    batch_worker.engine.script = (release, *tokens("a"))
    batch_worker.worker = Worker(
        batch_worker.engine.engines, settings(FILES_PATH=str(batch_worker.root)), report
    )
    spec = batch_request(64, data_parallelism=2)
    job = asyncio.create_task(batch_worker.run_batch(**spec))
    await poll_until(lambda: bool(batch_worker.engine.requests))
    with ScriptedEngine(*tokens("a")) as other_engine:
        other = asyncio.create_task(
            run_batch(worker_with_volume(batch_worker.root, other_engine), **spec)
        )
        # The other job answers all shards but the one that this job has begun.
        await poll_until(lambda: done[-1] >= 32)
        release.set()
        batch = await job
        assert await other == batch
    assert batch["request_counts"] == request_counts(64)


async def test_a_batch_above_the_concurrent_ones_waits_without_its_input_and_without_a_lease(
    batch_worker: BatchWorker,
) -> None:
    release = asyncio.Event()
    batch_worker.engine.script = (release, *tokens("a"))
    places = KINDS["batch"].places
    jobs = [
        asyncio.create_task(batch_worker.run_batch(f"job-{number}", **batch_request(2)))
        for number in range(places)
    ]

    def running_count() -> int:
        return sum(batch.is_leased("shard-0") for batch in all_records(batch_worker.batches))

    await poll_until(lambda: running_count() == places)
    text = "waits" * 1_000
    references = sys.getrefcount(text)
    job = {"id": "waiting", "input": {"batch": batch_request(2, requests=lines(2, prompt=text))}}
    yields = batch_worker.worker.handle(job)
    waiting = asyncio.ensure_future(anext(yields))
    await poll_until(lambda: len(all_records(batch_worker.batches)) == places + 1)
    await poll_until(lambda: sys.getrefcount(text) == references)
    batch = next(one for one in all_records(batch_worker.batches) if not one.is_leased())
    assert batch.snapshot().status == "validating"
    batch_worker.engine.loop.call_soon_threadsafe(release.set)
    assert (await waiting)["batch"]["request_counts"]["total"] == 2
    await yields.aclose()
    assert [(await job)["status"] for job in jobs] == ["completed"] * places


async def test_lines_leave_capacity_for_other_requests(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.run.QUIET_S", 0.2)
    first_release, second_release = asyncio.Event(), asyncio.Event()
    batch_worker.engine.script = (first_release, *tokens("a"))
    batch_worker.worker = worker_with_volume(
        batch_worker.root, batch_worker.engine, BATCH_CONCURRENCY="64"
    )
    task = asyncio.create_task(batch_worker.run_batch(**batch_request(128)))
    await poll_until(lambda: len(batch_worker.engine.active_requests) == 64)
    other = asyncio.create_task(batch_worker.run_job({"prompt": "Hi"}, "other"))
    # Two lines, and the other request.
    await poll_until(lambda: len(batch_worker.engine.active_requests) == 3)
    batch_worker.engine.script = (second_release, *tokens("a"))
    batch_worker.engine.loop.call_soon_threadsafe(first_release.set)
    assert (await other)["choices"]
    await poll_until(lambda: len(batch_worker.engine.active_requests) == 64)
    batch_worker.engine.loop.call_soon_threadsafe(second_release.set)
    output, _ = batch_worker.results(await task)
    assert list(output) == [f"c{index}" for index in range(128)]
    prompts = [
        body["messages"][0]["content"]
        for body in batch_worker.engine.requests
        if isinstance(body, dict)
    ]
    repeated = {name for index, name in enumerate(prompts) if name in prompts[:index]}
    # The oldest lines stay, and the same owner restarts the others.
    assert repeated
    assert "c0" not in repeated
    assert len([*batch_worker.only_batch().parts_directory.glob("*.jsonl")]) == 1


async def test_a_job_that_creates_a_shared_batch_starts_the_other_jobs_once(
    batch_worker: BatchWorker,
) -> None:
    started_ids: list[str] = []

    async def start_work(work: WorkReference) -> bool:
        started_ids.append(work.id)
        return True

    environ = settings(FILES_PATH=str(batch_worker.root))
    batch_worker.worker = Worker(batch_worker.engine.engines, environ, start_work=start_work)
    for _ in range(2):
        batch = await batch_worker.run_batch(**batch_request(3, data_parallelism=3))
    assert started_ids == [batch["id"]] * 2


async def run_until_time_is_over(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch, count: int
) -> Any:
    """Run a batch in a job whose time is over as soon as a line runs."""
    passed_s = 0.0
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + passed_s)
    for module in ("batches.run", "long_work.runner"):
        monkeypatch.setattr(f"worker.{module}.time", clock)
    job = {"batch": batch_request(count, max_runtime_sec=3600)}
    task = asyncio.create_task(batch_worker.run_job(job))
    await poll_until(lambda: batch_worker.engine.active_requests)
    passed_s = 3600 - WIND_DOWN_S
    return await task


async def test_a_job_whose_time_is_over_finishes_running_lines_and_leaves_the_others(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.run.POLL_S", 0.05)
    batch_worker.engine.script = tuple(tokens("a", "b", pause=0.5))
    response = await run_until_time_is_over(batch_worker, monkeypatch, count=50)
    monkeypatch.undo()
    answered = response["batch"]["request_counts"]["completed"]
    assert answered == len(batch_worker.engine.requests)
    assert batch_worker.engine.aborted_requests == []
    assert (response["batch"]["status"], 0 < answered < 50) == ("in_progress", True)
    batch_worker.engine.script = tuple(tokens("a"))
    batch = (await batch_worker.run_job(response["run_with"]["input"], "job-2"))["batch"]
    assert (batch["id"], batch["status"]) == (response["batch"]["id"], "completed")
    assert len(batch_worker.results(batch)[0]) == 50


async def test_lines_that_run_too_long_are_aborted(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.batches.run.ABORT_GRACE_S", 0.5)
    batch_worker.engine.script = tuple(tokens("a", "b", pause=600.0))
    response = await run_until_time_is_over(batch_worker, monkeypatch, count=5)
    await poll_until(
        lambda: len(batch_worker.engine.aborted_requests) == len(batch_worker.engine.requests) > 0
    )
    assert response["batch"]["status"] == "in_progress"
    assert response["run_with"]["input"] == {"batch": {"id": response["batch"]["id"]}}


async def test_a_worker_that_stops_finishes_its_running_lines(batch_worker: BatchWorker) -> None:
    task = await batch_worker.start_batch(10, **batch_request(300))
    batch_worker.worker.stop_long_work()
    response = await task
    request_count = len(batch_worker.engine.requests)
    assert response["batch"]["request_counts"]["completed"] == request_count < 300
    batch_worker.engine.script = tuple(tokens("a"))
    batch_worker.worker = worker_with_volume(batch_worker.root, batch_worker.engine)
    batch = (await batch_worker.run_job(response["run_with"]["input"], "job-2"))["batch"]
    assert (batch["status"], len(batch_worker.engine.requests)) == ("completed", 300)


async def test_a_cancelled_batch_keeps_its_answers(batch_worker: BatchWorker) -> None:
    task = await batch_worker.start_batch(40, **batch_request(300))
    cancel = {"route": f"/v1/batches/{batch_worker.only_batch().id}/cancel", "method": "POST"}
    response = await batch_worker.run_job(cancel, "job-2")
    assert response["status"] in {"cancelling", "cancelled"}
    batch = (await task)["batch"]
    expect_partial_results(batch_worker, batch, "cancelled")
    assert (await batch_worker.job_error(cancel, "job-3"))["code"] == 409


async def test_an_expired_batch_keeps_its_answers(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await batch_worker.start_batch(40, **batch_request(300, completion_window="1h"))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    expect_partial_results(batch_worker, (await task)["batch"], "expired")


def expect_partial_results(batch_worker: BatchWorker, batch: dict[str, Any], status: str) -> None:
    assert batch["status"] == status
    output, errors = batch_worker.results(batch)
    assert len(output) + len(errors) == 300
    assert len(output) == batch["request_counts"]["completed"] > 0
    assert {item["error"]["code"] for item in errors.values()} == {f"batch_{status}"}
