"""The outputs of LLM Engine's batches: each has its file, and overwrites nobody's."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.caller import Caller
from support.llm_engine_batches import ASKED, BODY, V2, run

from worker.batches.state import RESULT


def output_of(caller: Caller) -> Path:
    return caller.root / "out" / "a.json"


async def refused_as_taken(caller: Caller, **changes: Any) -> bool:
    error = await caller.refused("POST", V2, **BODY, **changes)
    return (error["code"], error["param"]) == (409, "output_data_path")


async def test_what_is_on_the_volume_is_not_written_over(caller: Caller) -> None:
    output = output_of(caller)
    output.parent.mkdir()
    output.write_text("mine")
    assert await refused_as_taken(caller)
    assert output.read_text() == "mine"


async def test_a_template_is_not_put_into_a_models_directory(caller: Caller) -> None:
    model = caller.root / "models" / "my-model"
    model.mkdir(parents=True)
    body = {**BODY, "output_data_path": "models/my-model/chat_template.jinja"}
    error = await caller.refused("POST", V2, **body)
    assert (error["code"], error["param"]) == (400, "output_data_path")
    assert "callers' paths are below out/" in error["message"]
    assert [*model.iterdir()] == []


async def test_of_two_batches_with_one_output_the_second_is_refused(caller: Caller) -> None:
    output = output_of(caller)
    created = await caller.post(V2, **BODY)
    assert json.loads(output.read_bytes()) == {"job_id": created["job_id"]}
    # However the second one writes the path, and before and after the first one has ended.
    body = {**BODY, "output_data_path": "./out//a.json"}
    assert (await caller.refused("POST", V2, **body))["code"] == 409
    assert (await run(caller, created))["status"] == "completed"
    written = output.read_bytes()
    assert await refused_as_taken(caller)
    assert output.read_bytes() == written
    assert len((await caller.get(V2))["jobs"]) == 1


async def test_a_batch_that_is_refused_leaves_its_output_to_others(caller: Caller) -> None:
    output = output_of(caller)
    await caller.refused("POST", V2, **ASKED, content=[{}])
    assert not output.exists()
    await caller.post(V2, **BODY)


@pytest.mark.parametrize("other", [b"another's", None], ids=["file", "directory"])
async def test_what_others_put_in_its_place_stays(caller: Caller, other: bytes | None) -> None:
    output = output_of(caller)
    created = await caller.post(V2, **BODY)
    output.unlink()
    if other is None:
        output.mkdir()
    else:
        output.write_bytes(other)
    job = await run(caller, created)
    assert job["status"] == "failed"
    assert job["metadata"]["error"].startswith("output_data_path: out/a.json: ")
    # The answers are not lost.
    answers = await caller.get(f"/v1/files/{job['metadata']['output_file_id']}/content")
    assert "custom_id" in answers
    assert other is None or output.read_bytes() == other


async def test_a_batch_whose_input_is_gone_leaves_its_output_to_others(caller: Caller) -> None:
    output = output_of(caller)
    created = await caller.post(V2, **BODY)
    (content,) = (caller.root / "worker" / "files").glob("*/content")
    content.unlink()
    assert (await run(caller, created))["status"] == "failed"
    assert not output.exists()


async def test_an_output_that_was_written_already_is_the_same(caller: Caller) -> None:
    output = output_of(caller)
    created = await caller.post(V2, **BODY)
    await run(caller, created)
    written = output.read_bytes()
    # As if the worker had been killed before it wrote down the end.
    (caller.root / "worker" / "batches" / created["job_id"] / RESULT).unlink()
    assert (await run(caller, created))["status"] == "completed"
    assert output.read_bytes() == written
