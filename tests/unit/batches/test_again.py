"""Repeated jobs: the same request continues its batch, and another request is refused."""

import asyncio
from typing import Any

import pytest
from support.batches import (
    BatchWorker,
    batch_request,
    lines,
    run_batch,
    to_jsonl,
    worker_with_volume,
)
from support.engine.scripted import CHAT

INLINE = batch_request(3)
ON_VOLUME: dict[str, Any] = {"input_path": "inbox/a.jsonl", "endpoint": CHAT}
# Bodies of LLM Engine's batch completions, versions 1 and 2.
V1: dict[str, Any] = {"prompts": ["Hi"], "max_new_tokens": 3, "temperature": 0}
V2: list[dict[str, Any]] = [{"prompt": "Hi"}]


@pytest.fixture
def batch_worker(batch_worker: BatchWorker) -> BatchWorker:
    (batch_worker.root / "inbox").mkdir()
    for name in ("a", "b"):
        (batch_worker.root / "inbox" / f"{name}.jsonl").write_bytes(to_jsonl(lines(3)))
    return batch_worker


@pytest.mark.parametrize(
    ("first", "max_runtime_sec", "other"),
    [
        (INLINE, 1, {**INLINE, "metadata": {"a": "b"}}),
        (INLINE, 3600, batch_request(2)),
        (INLINE, 3600, {**INLINE, "requests": lines(3)[::-1]}),
        (INLINE, 3600, ON_VOLUME),
        (ON_VOLUME, 1, INLINE),
        (ON_VOLUME, 3600, {**ON_VOLUME, "input_path": "inbox/b.jsonl"}),
    ],
    ids=lambda value: str(value)[-48:],
)
async def test_a_job_with_another_batch_is_refused_and_the_first_batch_continues(
    batch_worker: BatchWorker, first: dict[str, Any], max_runtime_sec: int, other: dict[str, Any]
) -> None:
    original = await batch_worker.run_batch(**first, max_runtime_sec=max_runtime_sec)
    error = await batch_worker.job_error({"batch": other})
    assert (error["code"], error["retryable"]) == (409, False)
    assert "job with the same id" in error["message"]
    batch = await batch_worker.run_batch(**first)
    assert (batch["id"], batch["status"]) == (original["id"], "completed")
    assert list(batch_worker.results(batch)[0]) == ["c0", "c1", "c2"]
    assert (await batch_worker.run_batch("job-2", **first))["id"] != batch["id"]
    # The input no longer matters once the batch has ended.
    (batch_worker.root / "inbox" / "a.jsonl").unlink()
    assert await batch_worker.run_batch(**first) == batch
    assert len(batch_worker.engine.requests) == 6


async def test_lines_from_a_dead_worker_belong_to_its_job(batch_worker: BatchWorker) -> None:
    await batch_worker.run_batch(**INLINE, max_runtime_sec=1)
    (batch_worker.only_batch().directory / "request.json").unlink()
    error = await batch_worker.job_error({"batch": batch_request(4)})
    batch = await batch_worker.run_batch(**INLINE)
    assert (error["code"], batch["request_counts"]["completed"]) == (409, 3)


async def test_concurrent_runs_of_a_job_share_one_batch(batch_worker: BatchWorker) -> None:
    workers = [worker_with_volume(batch_worker.root, batch_worker.engine) for _ in range(4)]
    batches = await asyncio.gather(*(run_batch(worker, **INLINE) for worker in workers))
    assert all(batch == batches[0] for batch in batches)
    assert len(batch_worker.engine.requests) == 3


@pytest.mark.parametrize(
    ("version", "first", "other"),
    [
        (1, {"content": V1}, {"content": {**V1, "max_new_tokens": 4}}),
        (2, {"content": V2}, {"content": [*V2, *V2]}),
        (2, {"content": V2}, {"content": V2, "output_data_path": "out/other.json"}),
        (2, {"content": V2}, {"input_data_path": "inbox/in.json"}),
        (2, {"input_data_path": "inbox/in.json"}, {"input_data_path": "inbox/a.jsonl"}),
    ],
    ids=str,
)
async def test_an_llm_engine_job_with_another_request_is_refused(
    batch_worker: BatchWorker, version: int, first: dict[str, Any], other: dict[str, Any]
) -> None:
    input_path = batch_worker.root / "inbox" / "in.json"
    input_path.write_text('[{"prompt": "Hi"}]')
    shared = {"model_config": {"model": "demo"}, "output_data_path": "out/out.json"}

    def job(keys: dict[str, Any]) -> dict[str, Any]:
        route = f"/v{version}/{'llm/' if version == 1 else ''}batch-completions"
        return {"route": route, "method": "POST", "body": {**shared, **keys}}

    created = await batch_worker.run_job(job(first))
    assert (await batch_worker.job_error(job(other)))["code"] == 409
    # Neither input nor output matters any more.
    input_path.unlink()
    (batch_worker.root / "out" / "out.json").write_text("[]")
    assert (await batch_worker.run_job(job(first)))["job_id"] == created["job_id"]
