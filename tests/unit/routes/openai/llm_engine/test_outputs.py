"""The outputs of LLM Engine's batches: each has its file, and overwrites nobody's."""

import json
from pathlib import Path

import pytest
from support.batches import answered, refused
from support.llm_engine_batches import ASKED, BODY, CHAT, V2, get, post, refusal, run

from worker.app import Worker
from worker.batches.state import RESULT


async def test_what_is_on_the_volume_is_not_written_over(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.json").write_text("mine")
    error = await refused(worker, {"route": V2, "method": "POST", "body": BODY})
    assert (error["code"], error["param"]) == (409, "output_data_path")
    assert (tmp_path / "out" / "a.json").read_text() == "mine"


async def test_a_template_is_not_put_into_a_models_directory(
    worker: Worker, tmp_path: Path
) -> None:
    (tmp_path / "models" / "my-model").mkdir(parents=True)
    output = {"output_data_path": "models/my-model/chat_template.jinja"}
    error = await refusal(worker, V2, **{**BODY, **output})
    assert (error["code"], error["param"]) == (400, "output_data_path")
    assert "callers' paths are below out/" in error["message"]
    assert [*(tmp_path / "models" / "my-model").iterdir()] == []


async def test_of_two_batches_with_one_output_the_second_is_refused(
    worker: Worker, tmp_path: Path
) -> None:
    place = tmp_path / "out" / "a.json"
    created = await post(worker, V2, "job-1", **ASKED, content=[CHAT])
    assert json.loads(place.read_bytes()) == {"job_id": created["job_id"]}
    # However the second one writes the path, and before and after the first one has ended.
    other = ASKED | {"output_data_path": f"./out//{place.name}"}
    body = {"route": V2, "method": "POST", "body": {**other, "content": [CHAT]}}
    assert (await refused(worker, body, "job-2"))["code"] == 409
    assert (await run(worker, created))["status"] == "completed"
    written = place.read_bytes()
    error = await refused(worker, body, "job-2")
    assert (error["code"], error["param"]) == (409, "output_data_path")
    assert place.read_bytes() == written
    assert len((await get(worker, V2))["jobs"]) == 1


async def test_a_batch_that_is_refused_leaves_its_output_to_others(
    worker: Worker, tmp_path: Path
) -> None:
    await refusal(worker, V2, **ASKED, content=[{}])
    assert not (tmp_path / "out" / "a.json").exists()
    await post(worker, V2, **ASKED, content=[CHAT])


@pytest.mark.parametrize("other", [b"another's", None], ids=["file", "directory"])
async def test_what_somebody_else_has_put_in_the_outputs_place_stays(
    worker: Worker, tmp_path: Path, other: bytes | None
) -> None:
    created = await post(worker, V2, **ASKED, content=[CHAT])
    place = tmp_path / "out" / "a.json"
    place.unlink()
    if other is None:
        place.mkdir()
    else:
        place.write_bytes(other)
    job = await run(worker, created)
    assert job["status"] == "failed"
    assert job["metadata"]["error"].startswith("output_data_path: out/a.json: ")
    # The answers are not lost.
    answers = {"route": f"/v1/files/{job['metadata']['output_file_id']}/content", "method": "GET"}
    assert "custom_id" in await answered(worker, answers)
    assert other is None or place.read_bytes() == other


async def test_a_batch_whose_input_is_gone_leaves_its_output_to_others(
    worker: Worker, tmp_path: Path
) -> None:
    created = await post(worker, V2, **ASKED, content=[CHAT])
    (content,) = (tmp_path / "worker" / "files").glob("*/content")
    content.unlink()
    assert (await run(worker, created))["status"] == "failed"
    assert not (tmp_path / "out" / "a.json").exists()


async def test_an_output_that_was_written_already_is_the_same(
    worker: Worker, tmp_path: Path
) -> None:
    created = await post(worker, V2, **ASKED, content=[CHAT])
    await run(worker, created)
    written = (tmp_path / "out" / "a.json").read_bytes()
    # As if the worker had been killed before it wrote down the end.
    (tmp_path / "worker" / "batches" / created["job_id"] / RESULT).unlink()
    assert (await run(worker, created))["status"] == "completed"
    assert (tmp_path / "out" / "a.json").read_bytes() == written
