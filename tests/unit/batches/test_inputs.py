"""Inputs that are wrong: each mistake has its line, and nothing is left on the volume."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.batches import Batching, as_text, batch_of, line, lines, worker_at
from support.engine.scripted import CHAT
from support.tables.batch_inputs import BOM, ENVIRON, GOOD, ODD, WRONG, Wrong

INPUT = "input.jsonl"
NOTHING = {"total": 0, "completed": 0, "failed": 0}


async def ran(batching: Batching, content: bytes, **environ: str) -> dict[str, Any]:
    """Run a batch of a file on the volume, in a job of its own."""
    (batching.root / "inbox").mkdir(exist_ok=True)
    (batching.root / "inbox" / INPUT).write_bytes(content)
    worker = worker_at(batching.root, batching.engine, **{**ENVIRON, **environ})
    job_id = f"job-{len(batching.batches.all())}"
    return await batch_of(worker, job_id, input_path=f"inbox/{INPUT}", endpoint=CHAT)


def files_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_wrong_input_fails_the_batch_and_its_mistake_has_a_line(
    batching: Batching, wrong: Wrong, caplog: pytest.LogCaptureFixture
) -> None:
    batch = await ran(batching, wrong.content)
    assert (batch["status"], batch["request_counts"]) == ("failed", NOTHING)
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    assert batch["failed_at"] >= batch["created_at"]
    assert batch["errors"]["object"] == "list"
    first = batch["errors"]["data"][0]
    assert (first["code"], first["line"], first["param"]) == wrong[1:4]
    assert wrong.says in first["message"]
    # Of the caller's file nothing but its description is kept, and of the batch how it ended.
    assert files_in(batching.root) == [INPUT, "meta.json", "request.json", "result.json"]
    assert str(batching.root) not in json.dumps(batch)
    assert batching.engine.asked == []
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
async def test_odd_inputs_are_accepted_and_counted(batching: Batching, content: bytes) -> None:
    batch = await ran(batching, content)
    output, errors = batching.results(batch)
    assert (batch["status"], errors) == ("completed", {})
    assert list(output) == [f"c{index}" for index in range(content.count(b'"custom_id"'))]
    content += (b"" if content.endswith((b"\n", b" ")) else b"\n") + b"wrong\n"
    (mistake,) = (await ran(batching, content, BATCH_MAX_REQUESTS="100"))["errors"]["data"]
    assert mistake["line"] == content.count(b"\n")


async def test_all_mistakes_are_told_up_to_a_hundred(batching: Batching) -> None:
    content = GOOD + b"\n" + GOOD + as_text([line("d", "/v1/completions")]) + b"wrong\n" * 150
    batch = await ran(batching, content, BATCH_MAX_REQUESTS="1000")
    assert [(mistake["code"], mistake["line"]) for mistake in batch["errors"]["data"]] == [
        ("duplicate_custom_id", 3),
        ("invalid_url", 4),
        *(("invalid_json_line", number) for number in range(5, 103)),
    ]


async def test_long_and_strange_custom_ids_stay_as_they_are(batching: Batching) -> None:
    names = ["x" * 512, "\U0001f600" * 512, "../../etc/passwd", "a\0b", " ", "\u2028", "c\n"]
    content = as_text(line(name) for name in names)
    batch = await ran(batching, BOM + content, BATCH_MAX_REQUESTS="100")
    assert list(batching.results(batch)[0]) == names


@pytest.mark.parametrize(
    "wrong",
    [line("c0"), line("\ud800"), line("a", temperature=float("nan")), line("a", stream=True)],
    ids=["name twice", "half a character", "no number", "stream"],
)
async def test_lines_in_the_job_itself_are_checked_likewise(
    batching: Batching, wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    batch = await batching.run(requests=[*lines(2), wrong], endpoint=CHAT)
    assert (batch["status"], batching.engine.asked) == ("failed", [])
    (mistake,) = batch["errors"]["data"]
    assert mistake["line"] == 3
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
