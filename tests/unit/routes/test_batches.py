"""Jobs that run batches: what is refused, and how the lines of a batch go the OpenAI path."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.batches import answered, as_text, batch_of, lines, refused, results, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, chat, replying, settings, tokens
from support.tables.batch_requests import NO_IDS, NO_PATHS, REFUSED, REFUSED_JOBS

from worker.app import Worker
from worker.files import Files
from worker.job.long_work import LongWork


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a volume with one file, and links that lead out of it or to what is private."""
    root = tmp_path / "volume"
    (root / "inbox").mkdir(parents=True)
    (root / "inbox" / "a.jsonl").write_bytes(as_text(lines(1)))
    (tmp_path / "secret").write_text("out of the volume")
    (root / "out").symlink_to(tmp_path)
    (root / "inbox" / "leak").symlink_to(tmp_path / "secret")
    (root / "inbox" / "mine").symlink_to(root / "worker")
    (root / "loop").symlink_to(root / "loop")
    return root


def on_volume(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


async def error_of(root: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """Return how a job fails; nothing of it may be left, and nothing be told of the machine."""
    before = on_volume(root)
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine, RUNPOD_VOLUME_ID="bucket")
        error = await refused(worker, {"batch": spec})
    assert engine.asked == []
    assert on_volume(root) == before
    assert str(root.parent) not in json.dumps(error)
    return error


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_JOBS])
async def test_a_job_that_is_no_batch_is_refused_naming_the_field(name: str, root: Path) -> None:
    file = Files.of(settings(FILES_PATH=str(root))).refer("inbox/a.jsonl", purpose="batch")
    row = REFUSED[name] if name in REFUSED else REFUSED_JOBS[name]
    error = await error_of(root, row.of({"endpoint": CHAT, "input_file_id": file.id}))
    assert error["code"] == 400
    assert error["param"].endswith(row.param)
    assert row.says in error["message"]


@pytest.mark.parametrize("path", NO_PATHS, ids=lambda path: ascii(path[:40]))
async def test_a_path_that_is_no_file_of_a_callers_is_refused(
    path: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = await error_of(root, {"endpoint": CHAT, "input_path": path})
    assert (error["code"], error["param"]) == (400, "input_path")
    assert NO_PATHS[path] in error["message"]
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("text", NO_IDS, ids=lambda text: ascii(text[:40]))
async def test_texts_that_are_no_ids_find_nothing(text: str, root: Path) -> None:
    batch = await error_of(root, {"id": text.format(prefix="batch_")})
    file_id = text.format(prefix="file-")
    file = await error_of(root, {"endpoint": CHAT, "input_file_id": file_id})
    assert (batch["code"], batch["param"]) == (404, "batch_id")
    assert (file["code"], file["param"]) == (404, "input_file_id")


async def test_a_file_of_another_purpose_is_no_input(root: Path) -> None:
    files = Files.of(settings(FILES_PATH=str(root)))
    file = files.receive([as_text(lines(1))], filename="a", purpose="fine-tune")
    error = await error_of(root, {"endpoint": CHAT, "input_file_id": file.id})
    assert (error["code"], error["param"]) == (400, "input_file_id")
    assert "'fine-tune', not 'batch'" in error["message"]


async def test_a_file_that_has_expired_is_no_input(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files.of(settings(FILES_PATH=str(root)))
    file = files.receive([as_text(lines(1))], filename="a", purpose="batch", expires_after_s=3600)
    monkeypatch.setattr("time.time", lambda: file.created_at + 3600)
    error = await error_of(root, {"endpoint": CHAT, "input_file_id": file.id})
    assert (error["code"], error["param"]) == (404, "input_file_id")


async def test_without_a_volume_a_job_fails_with_what_the_operator_does(tmp_path: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = Worker(engine.engines, settings(BASE_PATH=str(tmp_path / "none")))
        error = await refused(worker, {"batch": {"requests": lines(1), "endpoint": CHAT}})
    assert (error["code"], error["retryable"]) == (507, False)
    assert "FILES_PATH" in error["message"]


async def test_an_endpoint_that_a_model_has_without_v1_is_taken_with_and_without(
    root: Path,
) -> None:
    with ScriptedEngine(app=replying('{"data": []}')) as engine:
        engine.bodies = {"/score": frozenset({"text_1"})}
        worker = worker_at(root, engine)
        for endpoint in ("/score", "/v1/score"):
            requests = lines(2, endpoint=endpoint, text_1="a")
            batch = await batch_of(worker, endpoint, requests=requests, endpoint=endpoint)
            assert batch["request_counts"]["completed"] == 2, batch


async def test_an_answer_that_no_yield_could_hold_is_fine_in_a_batch(root: Path) -> None:
    long = "a" * 1_100_000
    with ScriptedEngine(*tokens(long)) as engine:
        worker = worker_at(root, engine)
        alone = await refused(worker, chat(stream=False))
        batch = await batch_of(worker, requests=lines(1), endpoint=CHAT)
    assert alone["code"] == 413
    output, _ = results(root, batch)
    assert output["c0"]["response"]["body"]["choices"][0]["message"]["content"] == long


@pytest.mark.parametrize(
    ("by_priority", "expected"), [(True, {"c0": 100, "c1": 7}), (False, {"c0": None})]
)
async def test_where_the_engine_computes_by_priority_lines_come_after_callers(
    root: Path, *, by_priority: bool, expected: dict[str, int | None]
) -> None:
    requests = lines(2)
    requests[1]["body"]["priority"] = 7
    with ScriptedEngine(*tokens("a")) as engine:
        engine.model = dataclasses.replace(engine.model, by_priority=by_priority)
        engine.bodies = {CHAT: frozenset({*(engine.bodies[CHAT]), "priority"})}
        batch = await batch_of(worker_at(root, engine), requests=requests, endpoint=CHAT)
    bodies = [asked for asked in engine.asked if isinstance(asked, dict)]
    assert {one["messages"][0]["content"]: one.get("priority") for one in bodies} == expected
    # A priority of the caller's own that has no effect is refused, as anywhere else.
    assert batch["request_counts"]["failed"] == 2 - len(expected)


async def test_a_line_that_holds_too_much_is_refused_and_the_others_are_answered(
    root: Path,
) -> None:
    requests = lines(2)
    requests[0]["body"]["messages"] *= 11
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine, MAX_INPUT_ITEMS="10")
        (root / "inbox" / "b.jsonl").write_bytes(as_text(requests))
        batch = await batch_of(worker, input_path="inbox/b.jsonl", endpoint=CHAT)
    output, errors = results(root, batch)
    assert list(output) == ["c1"]
    assert "MAX_INPUT_ITEMS" in errors["c0"]["response"]["body"]["error"]["message"]
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}


async def test_the_files_of_a_job_that_comes_again_are_those_of_the_first_time(root: Path) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine)
        for spec in ({"requests": lines(1)}, {"input_path": "inbox/a.jsonl"}):
            await batch_of(worker, str(spec), **spec, endpoint=CHAT)
            before = on_volume(root)
            await batch_of(worker, str(spec), **spec, endpoint=CHAT)
            assert on_volume(root) == before


async def test_the_answer_counts_the_tokens_and_says_nothing_of_a_next_job_at_the_end(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with ScriptedEngine(*tokens("a")) as engine:
        engine.counted = (3, 2)
        spec = {"batch": {"requests": lines(4), "endpoint": CHAT}}
        found = await answered(worker_at(root, engine), spec)
    assert list(found) == ["batch"]
    (text,) = [one.getMessage() for one in caplog.records if one.name == "worker.record"]
    assert "route=batch status=200 prompt_tokens=12 output_tokens=8" in text


@pytest.mark.parametrize("starts", [True, False])
async def test_a_job_whose_time_is_over_sends_the_next_or_says_what_to_send(
    root: Path, *, starts: bool
) -> None:
    started: list[str] = []

    async def start(work: LongWork) -> bool:
        started.append(work.id)
        return starts

    with ScriptedEngine(*tokens("a")) as engine:
        worker = Worker(engine.engines, settings(FILES_PATH=str(root)), start=start)
        spec = {"requests": lines(1), "endpoint": CHAT, "max_runtime_sec": 1}
        found = await answered(worker, {"batch": spec})
        assert started == [found["batch"]["id"]]
        assert ("run_with" in found) == (not starts)
        started.clear()
        whole = await answered(worker, {"batch": {"id": found["batch"]["id"]}}, "job-2")
    assert (whole["batch"]["status"], started) == ("completed", [])
