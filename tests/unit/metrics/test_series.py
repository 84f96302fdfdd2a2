"""The worker's own metrics: how a job changes them, and their form."""

import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from support.engine.answers import JOB_ID, run_job
from support.engine.scripted import ScriptedEngine, chat_job, raw_job, tokens, worker
from support.metrics import watch_metrics

from worker.record import JobRecord

FINISHED = "worker_jobs_finished_total"


@pytest.mark.parametrize(
    ("payload", "code", "started", "streamed"),
    [
        (raw_job(stream=True), 200, 1, 1),
        (chat_job(stream=False), 200, 1, 0),
        ({"prompt": 7}, 400, 0, 0),
    ],
    ids=["a stream", "a whole answer", "a refusal"],
)
async def test_a_job_changes_the_metrics_when_it_ends(
    payload: dict[str, Any], code: int, started: int, streamed: int
) -> None:
    taken = watch_metrics("worker_jobs_taken_total", "worker_jobs_running", "worker_chunks_total")
    times = watch_metrics("worker_queue_seconds_count", "worker_first_token_seconds_count")
    finished = watch_metrics(FINISHED, code=str(code))
    yields = await run_job(payload, *tokens("a"))
    assert (taken(), times(), finished()) == ([1, 0, len(yields)], [started, streamed], [1])


async def test_a_record_without_a_job_of_a_caller_changes_no_metric() -> None:
    before = generate_latest(REGISTRY).decode()
    record = JobRecord(JOB_ID)
    with ScriptedEngine(*tokens("a")) as engine:
        async for _ in worker(engine).handle({"id": JOB_ID, "input": raw_job(stream=True)}, record):
            pass
    record.write_to_log()
    assert own_lines(generate_latest(REGISTRY).decode()) == own_lines(before)


def own_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if "worker_" in line]


def test_every_status_of_the_workers_errors_has_a_series_from_the_start() -> None:
    codes = ("200", "400", "404", "413", "499", "500", "503", "507")
    assert all(REGISTRY.get_sample_value(FINISHED, {"code": code}) is not None for code in codes)


def test_labels_have_few_values() -> None:
    labels = {
        collector._name: collector._labelnames
        for collector in REGISTRY._collector_to_names
        if isinstance(collector, MetricWrapperBase) and not collector._name.startswith("vllm:")
    }
    assert {name: names for name, names in labels.items() if names} == {
        "worker_jobs_finished": ("code",),
        "worker_batch_lines": ("result",),
    }
    assert len(labels) > 10


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_accepts_the_workers_metrics() -> None:
    text = generate_latest(REGISTRY)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.stdout + checked.stderr, checked.returncode) == (b"", 0)
