"""Inputs that are wrong: each mistake is told with its line, and nothing is left on the volume."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.batches import as_text, batch_of, line, lines, results, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, tokens
from support.tables.batch_inputs import BOM, ENVIRON, GOOD, ODD, WRONG

INPUT = "input.jsonl"


async def ran(root: Path, content: bytes, **environ: str) -> tuple[dict[str, Any], ScriptedEngine]:
    """Run a batch of a file on the volume."""
    (root / "inbox").mkdir(exist_ok=True)
    (root / "inbox" / INPUT).write_bytes(content)
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine, **{**ENVIRON, **environ})
        return await batch_of(worker, input_path=f"inbox/{INPUT}", endpoint=CHAT), engine


def kept(root: Path) -> list[str]:
    """Return the names of all files on a volume."""
    return sorted(path.name for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_input_fails_the_batch_and_its_mistake_has_a_line(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = WRONG[name]
    batch, engine = await ran(tmp_path, wrong.content)
    assert (batch["status"], engine.asked) == ("failed", [])
    assert batch["failed_at"] >= batch["created_at"]
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    assert batch["errors"]["object"] == "list"
    first = batch["errors"]["data"][0]
    told = (first["code"], first["line"], first["param"])
    assert told == (wrong.code, wrong.number, wrong.param)
    assert wrong.says in first["message"]
    # Of the caller's file nothing but its description is kept, and of the batch how it ended.
    assert kept(tmp_path) == ["failed.json", INPUT, "meta.json", "request.json"]
    assert str(tmp_path) not in json.dumps(batch)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_input_is_accepted_and_its_lines_are_counted_as_editors_do(
    name: str, tmp_path: Path
) -> None:
    odd = ODD[name]
    batch, _ = await ran(tmp_path, odd.content)
    assert batch["status"] == "completed"
    count = len(odd.numbers)
    assert batch["request_counts"] == {"total": count, "completed": count, "failed": 0}
    output, _ = results(tmp_path, batch)
    assert list(output) == [f"c{index}" for index in range(count)]


@pytest.mark.parametrize("name", ODD)
async def test_the_mistake_after_an_odd_beginning_has_the_right_line(
    name: str, tmp_path: Path
) -> None:
    odd = ODD[name]
    content = odd.content + (b"" if odd.content.endswith((b"\n", b" ")) else b"\n") + b"wrong\n"
    batch, _ = await ran(tmp_path, content, BATCH_MAX_REQUESTS="100")
    (mistake,) = batch["errors"]["data"]
    assert mistake["line"] == content.count(b"\n")


async def test_all_mistakes_are_told_up_to_a_hundred(tmp_path: Path) -> None:
    batch, _ = await ran(tmp_path, b"wrong\n\n" * 150, BATCH_MAX_REQUESTS="1000")
    told = [mistake["line"] for mistake in batch["errors"]["data"]]
    assert told == list(range(1, 200, 2))


async def test_lines_after_a_wrong_one_are_looked_at_too(tmp_path: Path) -> None:
    content = b"wrong\n" + GOOD + b"\n" + GOOD + as_text([line("d", "/v1/completions")])
    batch, _ = await ran(tmp_path, content)
    told = [(mistake["code"], mistake["line"]) for mistake in batch["errors"]["data"]]
    assert told == [("invalid_json_line", 1), ("duplicate_custom_id", 4), ("invalid_url", 5)]


async def test_the_longest_custom_id_and_characters_of_four_bytes_stay_as_they_are(
    tmp_path: Path,
) -> None:
    names = ["x" * 512, "\U0001f600" * 512, "../../etc/passwd", "a\0b", " ", "\u2028", "c\n"]
    content = as_text(line(name) for name in names)
    batch, _ = await ran(tmp_path, BOM + content, BATCH_MAX_REQUESTS="100")
    output, _ = results(tmp_path, batch)
    assert list(output) == names


@pytest.mark.parametrize(
    ("wrong", "number"),
    [
        ({"custom_id": "a"}, 3),
        (line("c0"), 3),
        (line("\ud800"), 3),
        (line("a", messages="\udfff"), 3),
        (line("a", temperature=float("nan")), 3),
        (line("a", stream=True), 3),
    ],
)
async def test_lines_in_the_job_itself_are_held_to_the_same(
    wrong: dict[str, Any], number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(tmp_path, engine)
        batch = await batch_of(worker, requests=[*lines(2), wrong], endpoint=CHAT)
    assert (batch["status"], engine.asked) == ("failed", [])
    (mistake,) = batch["errors"]["data"]
    assert mistake["line"] == number
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
