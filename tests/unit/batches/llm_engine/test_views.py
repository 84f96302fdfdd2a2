"""Batches as LLM Engine's jobs."""

from typing import Any

import pytest

from worker.batches.llm_engine.views import job

ASKED = {
    "output_data_path": "out.json",
    "model_config": {"model": "demo"},
    "priority": "3",
    "metadata": {"team": "a"},
}
BATCH: dict[str, Any] = {
    "id": "batch_1",
    "status": "in_progress",
    "created_at": 1_700_000_000,
    "expires_at": 1_700_086_400,
}


def test_a_batch_that_runs_is_a_job_with_what_was_asked() -> None:
    assert job(BATCH, ASKED) == {
        "job_id": "batch_1",
        "input_data_path": None,
        "output_data_path": "out.json",
        "model_config": {"model": "demo"},
        "priority": "3",
        "status": "running",
        "created_at": "2023-11-14T22:13:20+00:00",
        "expires_at": "2023-11-15T22:13:20+00:00",
        "completed_at": None,
        "metadata": {"team": "a"},
    }


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("validating", "queued"),
        ("in_progress", "running"),
        ("finalizing", "running"),
        ("cancelling", "running"),
        ("completed", "completed"),
        ("failed", "failed"),
        ("expired", "failed"),
        ("cancelled", "cancelled"),
        ("of a later version", "unknown"),
    ],
)
def test_the_status_is_one_of_llm_engines(status: str, told: str) -> None:
    assert job({**BATCH, "status": status}, ASKED)["status"] == told


@pytest.mark.parametrize("name", ["completed_at", "failed_at", "expired_at", "cancelled_at"])
def test_a_job_that_ended_tells_when_however_it_did(name: str) -> None:
    assert job({**BATCH, name: 1_700_000_001}, ASKED)["completed_at"] == "2023-11-14T22:13:21+00:00"


def test_a_job_that_failed_tells_why() -> None:
    failed = {**BATCH, "status": "failed", "errors": {"data": [{"message": "it has changed"}]}}
    assert job(failed, ASKED)["metadata"]["error"] == "it has changed"


def test_a_job_that_ended_tells_the_files_of_its_results() -> None:
    ended = {**BATCH, "output_file_id": "file-1", "error_file_id": None}
    assert job(ended, ASKED)["metadata"] == {"team": "a", "output_file_id": "file-1"}
