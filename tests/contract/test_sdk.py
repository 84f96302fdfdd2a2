"""Behaviours of the installed SDK that the worker needs, beyond its documented interface."""

from typing import Any

import pytest
from runpod.serverless.modules import rp_scale, worker_state
from runpod.serverless.modules.rp_handler import is_generator

from worker.app import Worker


def test_the_sdk_takes_the_workers_handle_for_a_generator() -> None:
    assert is_generator(Worker.handle)


async def test_the_sdk_looks_its_take_function_up_when_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def take(*_: Any) -> None: ...

    monkeypatch.setattr(rp_scale, "get_job", take)
    assert rp_scale.JobScaler({}).jobs_fetcher is take


def test_the_sdk_counts_the_jobs_that_are_not_answered_yet() -> None:
    jobs = worker_state.JobsProgress()
    jobs.add("job-1")
    assert jobs.get_job_count() == 1
    jobs.remove("job-1")
    assert jobs.get_job_count() == 0
