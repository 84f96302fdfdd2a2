"""Wrong inputs of batches: each mistake is reported with its line number."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.batches import BatchWorker, line, lines, run_batch, to_jsonl, worker_with_volume
from support.engine.scripted import CHAT
from support.tables.batch_inputs import (
    BOM,
    ENVIRON,
    GOOD,
    SURROGATE,
    VALID_INPUTS,
    WRONG_INPUTS,
    WrongInput,
)
from support.volume import all_records

INPUT = "input.jsonl"
NOTHING = {"total": 0, "completed": 0, "failed": 0}


async def run_input(batch_worker: BatchWorker, content: bytes, **environ: str) -> dict[str, Any]:
    """Run a batch of a new file on the volume, in a new job."""
    (batch_worker.root / "inbox").mkdir(exist_ok=True)
    (batch_worker.root / "inbox" / INPUT).write_bytes(content)
    worker = worker_with_volume(batch_worker.root, batch_worker.engine, **{**ENVIRON, **environ})
    job_id = f"job-{len(all_records(batch_worker.batches))}"
    return await run_batch(worker, job_id, input_path=f"inbox/{INPUT}", endpoint=CHAT)


def files_in(root: Path) -> list[str]:
    """Return the names of all files, without those of indexes."""
    paths = [path for path in root.rglob("*") if path.is_file()]
    return sorted(path.name for path in paths if "index" not in path.relative_to(root).parts)


@pytest.mark.parametrize("wrong_input", WRONG_INPUTS.values(), ids=WRONG_INPUTS)
async def test_a_wrong_input_fails_the_batch_and_its_mistake_has_a_line_number(
    batch_worker: BatchWorker, wrong_input: WrongInput, caplog: pytest.LogCaptureFixture
) -> None:
    batch = await run_input(batch_worker, wrong_input.content)
    assert (batch["status"], batch["request_counts"]) == ("failed", NOTHING)
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    assert batch["failed_at"] >= batch["created_at"]
    assert batch["errors"]["object"] == "list"
    first = batch["errors"]["data"][0]
    assert (first["code"], first["line"], first["param"]) == wrong_input[1:4]
    assert wrong_input.message_part in first["message"]
    # The volume stores metadata of the caller's file, and the batch's request and result.
    assert files_in(batch_worker.root) == [INPUT, "meta.json", "request.json", "result.json"]
    assert str(batch_worker.root) not in json.dumps(batch)
    assert batch_worker.engine.requests == []
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("content", VALID_INPUTS.values(), ids=VALID_INPUTS)
async def test_unusual_inputs_are_accepted_and_every_line_counts(
    batch_worker: BatchWorker, content: bytes
) -> None:
    batch = await run_input(batch_worker, content)
    output, errors = batch_worker.results(batch)
    assert (batch["status"], errors) == ("completed", {})
    assert list(output) == [f"c{index}" for index in range(content.count(b'"custom_id"'))]
    content += (b"" if content.endswith((b"\n", b" ")) else b"\n") + b"wrong\n"
    batch = await run_input(batch_worker, content, BATCH_MAX_REQUESTS="100")
    (mistake,) = batch["errors"]["data"]
    assert mistake["line"] == content.count(b"\n")


async def test_up_to_a_hundred_mistakes_are_reported(batch_worker: BatchWorker) -> None:
    content = GOOD + b"\n" + GOOD + to_jsonl([line("d", "/v1/completions")]) + b"wrong\n" * 150
    batch = await run_input(batch_worker, content, BATCH_MAX_REQUESTS="1000")
    assert [(mistake["code"], mistake["line"]) for mistake in batch["errors"]["data"]] == [
        ("duplicate_custom_id", 3),
        ("invalid_url", 4),
        *(("invalid_json_line", number) for number in range(5, 103)),
    ]


async def test_long_and_unusual_custom_ids_are_unchanged(batch_worker: BatchWorker) -> None:
    names = ["x" * 512, "\U0001f600" * 512, "../../etc/passwd", "a\0b", " ", "\u2028", "c\n"]
    content = to_jsonl(line(name) for name in names)
    batch = await run_input(batch_worker, BOM + content, BATCH_MAX_REQUESTS="100")
    assert list(batch_worker.results(batch)[0]) == names


@pytest.mark.parametrize(
    "wrong_line",
    [line("c0"), line("\ud800"), line("a", temperature=float("nan")), line("a", stream=True)],
    ids=["duplicate custom_id", "lone surrogate", "NaN", "stream"],
)
async def test_lines_inside_a_job_are_checked_like_lines_of_a_file(
    batch_worker: BatchWorker, wrong_line: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    batch = await batch_worker.run_batch(requests=[*lines(2), wrong_line], endpoint=CHAT)
    assert (batch["status"], batch_worker.engine.requests) == ("failed", [])
    (mistake,) = batch["errors"]["data"]
    assert mistake["line"] == 3
    assert (mistake["message"] == SURROGATE) == (wrong_line["custom_id"] == "\ud800")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
