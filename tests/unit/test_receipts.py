"""Receipts: their fields, and the files that workers append them to."""

import os
import time
from collections.abc import Callable
from datetime import date
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, settings
from support.processes.background import wait_until
from support.volume import read_receipts

from llm_worker_client.receipts import sum_receipts
from worker import receipts as module
from worker.process import lifetime
from worker.process.lifetime import call_exit_functions
from worker.receipts import Receipts, sweep_receipts, vllm_version
from worker.record import EngineUse, JobRecord
from worker.validation import MAX_METADATA_PAIRS

ONE_REQUEST = EngineUse(model="lora", prompt_tokens=12, cached_tokens=4, output_tokens=24)


@pytest.fixture(autouse=True)
def exit_functions(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return the functions that would be called at the exit of a worker with these receipts."""
    functions: list[Callable[[], None]] = []
    monkeypatch.setattr(lifetime, "_exit_functions", functions)
    return functions


def make_receipts(root: Path, **environ: str) -> Receipts:
    environ = {"BASE_PATH": str(root), "RECEIPTS": "1", "RUNPOD_POD_ID": "pod1", **environ}
    return Receipts(ScriptedEngine().engines, settings(**environ))


def make_record(id: str = "job-1", **fields: Any) -> JobRecord:
    """Return the record of a job with one request, which has ended."""
    record = JobRecord(id, route="/v1/chat/completions", **fields)
    record.use.start_request(lambda: record.use.add(ONE_REQUEST))()
    record.use.gpu_seconds = 0.5
    return record


def test_a_receipt_has_the_works_figures_and_the_callers_names(tmp_path: Path) -> None:
    record = make_record(user="alice", labels={"team": "a"}, batch="batch_1")
    record.use.computed_from = record.received_at + 0.002
    record.use.first_token_at = record.received_at + 0.02
    receipt = make_receipts(tmp_path, GPU_PRICE_PER_SECOND="0.002").create(record)
    assert receipt
    assert receipt.pop("created") == pytest.approx(time.time(), abs=60)
    assert receipt.pop("total_ms") >= 0
    assert receipt == {
        "id": "job-1",
        "route": "/v1/chat/completions",
        "model": "lora",
        "status": 200,
        "queue_ms": 2.0,
        "first_token_ms": 20.0,
        "tokens": {"prompt": 12, "cached": 4, "completion": 24},
        "preemptions": 0,
        "gpu_seconds": 0.5,
        "cost_usd": 0.001,
        "worker": {"id": "pod1", "gpu": "CPU", "vllm": vllm_version()},
        "user": "alice",
        "labels": {"team": "a"},
        "batch": "batch_1",
    }


def test_the_tokens_are_those_of_the_answers_usage(tmp_path: Path) -> None:
    """A beam search computes its prompt in many requests."""
    record = make_record()
    record.usage.add(3, 4)
    receipt = make_receipts(tmp_path).create(record)
    assert receipt
    assert receipt["tokens"] == {"prompt": 3, "cached": 4, "completion": 4}


# Characters of which each takes up to six bytes in JSON, and halves of a surrogate pair.
HOSTILE_TEXTS = [character * 600 for character in 'a\0\n"\\é\u2028😀\ud83d\udc00']


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_the_largest_receipt_is_a_line_that_the_reader_accepts(
    tmp_path: Path, text: str, exit_functions: list[Callable[[], None]]
) -> None:
    """Otherwise the costs of a request would be missing in the sums."""
    names = {"GPU_PRICE_PER_SECOND": "0.1", "RUNPOD_ENDPOINT_ID": "a" * 600}
    made = make_receipts(tmp_path, RUNPOD_POD_ID="b" * 600, **names)
    labels = {f"{number}{text}"[:64]: text[:512] for number in range(2 * MAX_METADATA_PAIRS)}
    record = make_record(text, user=text, labels={**labels, "more": text}, batch=text)
    record.route, record.use.model, record.status = text, text, 499
    receipt = made.create(record)
    made.store(record)
    call_exit_functions()
    (path,) = tmp_path.glob("worker/receipts/*/*")
    # The limit of a reader is eight times as high.
    assert path.stat().st_size < 2**17
    day = date.fromisoformat(path.parent.name)
    sums = sum_receipts(tmp_path, [day], ["user", "label"])
    assert (sums.total.requests, sums.skipped_lines) == (1, 0)
    assert len(sums.groups) == len(labels)
    assert read_receipts(tmp_path) == [receipt]


def test_a_job_without_a_request_to_an_engine_has_no_receipt(tmp_path: Path) -> None:
    made = make_receipts(tmp_path)
    assert made.create(JobRecord("job-1")) is None
    made.store(JobRecord("job-1"))
    assert read_receipts(tmp_path) == []


def test_requests_of_an_abandoned_job_end_with_it_without_receipts_too(tmp_path: Path) -> None:
    record, ended = JobRecord("job-1"), []
    record.use.start_request(lambda: ended.append(1))
    make_receipts(tmp_path, RECEIPTS="0").store(record)
    assert ended == [1]
    assert [*tmp_path.iterdir()] == []


def test_receipts_are_written_together_without_further_calls(tmp_path: Path) -> None:
    made = make_receipts(tmp_path)
    for number in range(5):
        made.store(make_record(f"job-{number}", status=499))
    wait_until(lambda: len(read_receipts(tmp_path)) == 5)
    assert [(receipt["id"], receipt["status"]) for receipt in read_receipts(tmp_path)] == [
        (f"job-{number}", 499) for number in range(5)
    ]


def test_the_file_has_the_same_receipt_as_the_answer(tmp_path: Path) -> None:
    # JSON allows the characters after the name in strings, and other readers end lines at them.
    made, record = make_receipts(tmp_path), make_record(user="alice\x85\u2028\u2029")
    receipt = made.create(record)
    made.store(record)
    wait_until(lambda: bool(read_receipts(tmp_path)))
    assert read_receipts(tmp_path) == [receipt]
    (path,) = tmp_path.glob("worker/receipts/*/*")
    assert len(path.read_text().splitlines()) == 1


def test_a_job_whose_parts_have_receipts_is_not_stored(
    tmp_path: Path, exit_functions: list[Callable[[], None]]
) -> None:
    made, job = make_receipts(tmp_path), JobRecord("job-1")
    line = JobRecord("line-1", use=job.use.create_part())
    line.use.start_request(lambda: line.use.add(ONE_REQUEST))()
    made.store(line)
    made.store(job)
    call_exit_functions()
    assert [receipt["id"] for receipt in read_receipts(tmp_path)] == ["line-1"]
    whole = made.create(job)
    assert whole
    assert whole["tokens"]["completion"] == 24


def test_pending_receipts_are_written_when_the_worker_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_S", 1e9)
    make_receipts(tmp_path).store(make_record())
    assert read_receipts(tmp_path) == []
    call_exit_functions()
    assert len(read_receipts(tmp_path)) == 1


def test_each_worker_has_a_file_of_its_own_in_the_directory_of_the_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_S", 1e9)
    for _ in range(2):
        make_receipts(tmp_path, RUNPOD_POD_ID="../pod 1").store(make_record())
    call_exit_functions()
    paths = [str(path.relative_to(tmp_path)) for path in tmp_path.glob("worker/receipts/*/*")]
    assert len(paths) == 2
    day = time.strftime("%Y-%m-%d", time.gmtime())
    assert all(path.startswith(f"worker/receipts/{day}/---pod-1-") for path in paths)


def test_receipts_wait_for_a_volume_that_fails_and_then_go_to_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "GROUP_S", 1e9)
    made = make_receipts(tmp_path)
    made.store(make_record("first"))
    call_exit_functions()

    def write_partly(file: FileIO, content: bytes) -> None:
        file.write(content[:10])
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_durably", write_partly)
        for name in ("second", "third"):
            made.store(make_record(name))
            call_exit_functions()
    assert [receipt["id"] for receipt in read_receipts(tmp_path)] == ["first"]
    call_exit_functions()
    assert {receipt["id"] for receipt in read_receipts(tmp_path)} == {"first", "second", "third"}
    assert len([*tmp_path.glob("worker/receipts/*/*")]) == 3
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "receipts could not be written to the volume, and wait"
    ]


def test_the_receipts_that_wait_are_limited_in_bytes_and_the_oldest_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "GROUP_S", 1e9)
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 50_000)
    missing, root = tmp_path / "missing", tmp_path / "later"
    made = make_receipts(missing)
    for number in range(1_000):
        made.store(make_record(f"job-{number}", user="u" * (number % 500)))
        if number % 100 == 0:
            call_exit_functions()
    assert made._file
    pending = [*made._file._pending]
    assert 48_000 < sum(map(len, pending)) == made._file._pending_bytes <= 50_000
    root.mkdir()
    root.rename(missing)
    call_exit_functions()
    assert (len(made._file._pending), made._file._pending_bytes) == (0, 0)
    written = [receipt["id"] for receipt in read_receipts(missing)]
    assert written == [f"job-{number}" for number in range(1_000 - len(pending), 1_000)]
    messages = [record.message.split(":")[0] for record in caplog.records]
    assert messages == [
        "receipts could not be written to the volume, and wait",
        f"{1_000 - len(pending)} receipts are lost",
    ]
    # The next outage has a count of its own.
    made.store(make_record())
    call_exit_functions()
    assert len(caplog.records) == 2


def test_only_receipts_that_are_older_than_the_retention_are_removed(tmp_path: Path) -> None:
    now = time.time()
    for day, age_days in {"2026-01-01": 11, "2026-01-02": 9}.items():
        file = tmp_path / "worker" / "receipts" / day / "pod1-1.jsonl"
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (now, now - age_days * 86_400))
    environ = {"BASE_PATH": str(tmp_path), "RECEIPTS_RETENTION_DAYS": "10"}
    assert sweep_receipts(settings(**environ)) == 1
    assert [day.name for day in (tmp_path / "worker" / "receipts").iterdir()] == ["2026-01-02"]
    assert sweep_receipts(settings(**{**environ, "RECEIPTS_RETENTION_DAYS": "0"})) == 0
