"""Jobs that come twice: the same one goes on with its batch, another one is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.batches import answered, as_text, batch_of, content, lines, only, refused, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, tokens

from worker.batches.state import FINALIZING, RESULT

GIVEN: dict[str, Any] = {"requests": lines(3), "endpoint": CHAT}
ON_VOLUME: dict[str, Any] = {"input_path": "inbox/a.jsonl", "endpoint": CHAT}
OTHERS: list[dict[str, Any]] = [
    {**GIVEN, "metadata": {"a": "b"}},
    {**GIVEN, "requests": lines(2)},
    {**GIVEN, "requests": lines(4)},
    {**GIVEN, "requests": lines(3)[::-1]},
    ON_VOLUME,
]
# LLM Engine's, of either version.
V1: dict[str, Any] = {"prompts": ["Hi"], "max_new_tokens": 3, "temperature": 0}
V2: list[dict[str, Any]] = [{"prompt": "Hi"}]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    for name in ("a", "b"):
        (tmp_path / "inbox" / f"{name}.jsonl").write_bytes(as_text(lines(3)))
    return tmp_path


@pytest.mark.parametrize("max_runtime_sec", [1, 3600], ids=["begun", "ended"])
@pytest.mark.parametrize("other", OTHERS, ids=str)
async def test_another_batch_by_the_same_job_is_refused_and_the_first_goes_on(
    root: Path, max_runtime_sec: int, other: dict[str, Any]
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine)
        first = await batch_of(worker, **GIVEN, max_runtime_sec=max_runtime_sec)
        error = await refused(worker, {"batch": other})
        assert (error["code"], error["retryable"]) == (409, False)
        assert "job with the same id" in error["message"]
        batch = await batch_of(worker, **GIVEN)
    assert (batch["id"], batch["status"]) == (first["id"], "completed")
    assert [one["custom_id"] for one in content(root, batch["output_file_id"])] == [
        "c0",
        "c1",
        "c2",
    ]


@pytest.mark.parametrize("other", [{**ON_VOLUME, "input_path": "inbox/b.jsonl"}, GIVEN], ids=str)
async def test_another_input_than_a_path_by_the_same_job_is_refused(
    root: Path, other: dict[str, Any]
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine)
        first = await batch_of(worker, **ON_VOLUME)
        assert (await refused(worker, {"batch": other}))["code"] == 409
        # Its input counts no more when it has ended.
        (root / "inbox" / "a.jsonl").unlink()
        assert await batch_of(worker, **ON_VOLUME) == first


async def test_the_lines_that_a_dead_worker_left_without_a_batch_are_those_of_its_job(
    root: Path,
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine)
        first = await batch_of(worker, **GIVEN, max_runtime_sec=1)
        (root / "worker" / "batches" / first["id"] / "request.json").unlink()
        error = await refused(worker, {"batch": {**GIVEN, "requests": lines(4)}})
        batch = await batch_of(worker, **GIVEN)
    assert (error["code"], batch["request_counts"]["completed"]) == (409, 3)


async def test_a_job_that_comes_twice_at_once_has_one_batch(root: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        workers = [worker_at(root, engine) for _ in range(4)]
        batches = await asyncio.gather(*(batch_of(one, **GIVEN) for one in workers))
    assert all(batch == batches[0] for batch in batches)
    assert len(engine.asked) == 3


async def test_an_answer_that_is_lost_before_the_end_is_computed_again(root: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine)
        await batch_of(worker, **GIVEN)
        batch = only(root)
        # All shards are done, the end is not.
        for name in (FINALIZING, RESULT):
            (batch.directory / name).unlink()
        (texts,) = batch.parts.glob("*.jsonl")
        texts.write_bytes(texts.read_bytes().replace(b'"c1"', b'"c9"'))
        again = await batch_of(worker, **GIVEN)
    assert len(engine.asked) == 4
    assert [one["custom_id"] for one in content(root, again["output_file_id"])] == [
        "c0",
        "c1",
        "c2",
    ]


# LLM Engine's:


@pytest.mark.parametrize(
    ("version", "given", "other"),
    [
        (1, {"content": V1}, {"content": {**V1, "prompts": ["Ho"]}}),
        (1, {"content": V1}, {"content": {**V1, "max_new_tokens": 4}}),
        (2, {"content": V2}, {"content": [*V2, *V2]}),
        (2, {"content": V2}, {"content": V2, "priority": "high"}),
        (2, {"content": V2}, {"content": V2, "output_data_path": "out/other.json"}),
        (2, {"content": V2}, {"input_data_path": "inbox/in.json"}),
        (2, {"input_data_path": "inbox/in.json"}, {"input_data_path": "inbox/a.jsonl"}),
    ],
    ids=str,
)
async def test_another_request_of_llm_engines_with_the_same_id_is_refused(
    root: Path, version: int, given: dict[str, Any], other: dict[str, Any]
) -> None:
    place = root / "inbox" / "in.json"
    place.write_text('[{"prompt": "Hi"}]')
    shared = {"model_config": {"model": "demo"}, "output_data_path": "out/out.json"}

    def job(keys: dict[str, Any]) -> dict[str, Any]:
        route = f"/v{version}/{'llm/' if version == 1 else ''}batch-completions"
        return {"route": route, "method": "POST", "body": {**shared, **keys}}

    with ScriptedEngine() as engine:
        worker = worker_at(root, engine)
        first = await answered(worker, job(given))
        assert (await refused(worker, job(other)))["code"] == 409
        # What the input and the output have then counts no more.
        place.unlink()
        (root / "out" / "out.json").write_text("[]")
        assert (await answered(worker, job(given)))["job_id"] == first["job_id"]
