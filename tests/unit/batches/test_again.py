"""Jobs that come twice: the same one goes on with its batch, another one is refused."""

import asyncio
from typing import Any

import pytest
from support.batches import Batching, as_text, batch_of, lines, of_lines, worker_at
from support.engine.scripted import CHAT

GIVEN = of_lines(3)
ON_VOLUME: dict[str, Any] = {"input_path": "inbox/a.jsonl", "endpoint": CHAT}
# LLM Engine's, of either version.
V1: dict[str, Any] = {"prompts": ["Hi"], "max_new_tokens": 3, "temperature": 0}
V2: list[dict[str, Any]] = [{"prompt": "Hi"}]


@pytest.fixture
def batching(batching: Batching) -> Batching:
    (batching.root / "inbox").mkdir()
    for name in ("a", "b"):
        (batching.root / "inbox" / f"{name}.jsonl").write_bytes(as_text(lines(3)))
    return batching


@pytest.mark.parametrize(
    ("first", "max_runtime_sec", "other"),
    [
        (GIVEN, 1, {**GIVEN, "metadata": {"a": "b"}}),
        *((GIVEN, seconds, of_lines(count)) for seconds in (1, 3600) for count in (2, 4)),
        (GIVEN, 3600, {**GIVEN, "requests": lines(3)[::-1]}),
        (GIVEN, 3600, ON_VOLUME),
        (ON_VOLUME, 1, GIVEN),
        (ON_VOLUME, 3600, {**ON_VOLUME, "input_path": "inbox/b.jsonl"}),
    ],
    ids=lambda value: str(value)[-48:],
)
async def test_another_batch_by_the_same_job_is_refused_and_the_first_goes_on(
    batching: Batching, first: dict[str, Any], max_runtime_sec: int, other: dict[str, Any]
) -> None:
    begun = await batching.run(**first, max_runtime_sec=max_runtime_sec)
    error = await batching.refused({"batch": other})
    assert (error["code"], error["retryable"]) == (409, False)
    assert "job with the same id" in error["message"]
    batch = await batching.run(**first)
    assert (batch["id"], batch["status"]) == (begun["id"], "completed")
    assert list(batching.results(batch)[0]) == ["c0", "c1", "c2"]
    assert (await batching.run("job-2", **first))["id"] != batch["id"]
    # Its input counts no more when it has ended.
    (batching.root / "inbox" / "a.jsonl").unlink()
    assert await batching.run(**first) == batch
    assert len(batching.engine.asked) == 6


async def test_lines_that_a_dead_worker_left_are_those_of_its_job(batching: Batching) -> None:
    await batching.run(**GIVEN, max_runtime_sec=1)
    (batching.only().directory / "request.json").unlink()
    error = await batching.refused({"batch": of_lines(4)})
    batch = await batching.run(**GIVEN)
    assert (error["code"], batch["request_counts"]["completed"]) == (409, 3)


async def test_a_job_that_comes_twice_at_once_has_one_batch(batching: Batching) -> None:
    workers = [worker_at(batching.root, batching.engine) for _ in range(4)]
    batches = await asyncio.gather(*(batch_of(one, **GIVEN) for one in workers))
    assert all(batch == batches[0] for batch in batches)
    assert len(batching.engine.asked) == 3


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
async def test_another_request_of_llm_engines_with_the_same_id_is_refused(
    batching: Batching, version: int, first: dict[str, Any], other: dict[str, Any]
) -> None:
    place = batching.root / "inbox" / "in.json"
    place.write_text('[{"prompt": "Hi"}]')
    shared = {"model_config": {"model": "demo"}, "output_data_path": "out/out.json"}

    def job(keys: dict[str, Any]) -> dict[str, Any]:
        route = f"/v{version}/{'llm/' if version == 1 else ''}batch-completions"
        return {"route": route, "method": "POST", "body": {**shared, **keys}}

    made = await batching.answered(job(first))
    assert (await batching.refused(job(other)))["code"] == 409
    # What the input and the output have then counts no more.
    place.unlink()
    (batching.root / "out" / "out.json").write_text("[]")
    assert (await batching.answered(job(first)))["job_id"] == made["job_id"]
