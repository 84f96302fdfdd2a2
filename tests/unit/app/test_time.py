"""The time limit of a job that runs a batch, set by the platform, the operator or the caller."""

from pathlib import Path
from typing import Any

import pytest
from support.batches import lines, worker_with_volume
from support.engine.scripted import CHAT, ScriptedEngine, tokens

from worker.record import JobRecord

LONG_MS, SHORT_MS = 600_000, 1_000
SHORT = {"EXECUTION_TIMEOUT_S": "1"}
DONE, UNFINISHED = "completed", "in_progress"


async def status_after_job(
    root: Path, environ: dict[str, str], policy: Any = None, **spec: Any
) -> str:
    """Run a batch in a job and return its status; a short time limit leaves no time for a line."""
    batch = {"requests": lines(2), "endpoint": CHAT, **spec}
    job = {"id": "job-1", "input": {"batch": batch}, "policy": policy}
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_with_volume(root, engine, **environ)
        (response,) = [chunk async for chunk in worker.handle(job)]
    assert ("run_with" in response) == (response["batch"]["status"] == UNFINISHED)
    assert len(engine.requests) == (2 if response["batch"]["status"] == DONE else 0)
    return str(response["batch"]["status"])


@pytest.mark.parametrize(
    ("environ", "milliseconds", "spec", "expected"),
    [
        pytest.param({}, None, {}, DONE, id="ten-minutes-by-default"),
        pytest.param(SHORT, None, {}, UNFINISHED, id="operator"),
        pytest.param({}, SHORT_MS, {}, UNFINISHED, id="policy"),
        pytest.param({}, SHORT_MS + 0.5, {}, UNFINISHED, id="policy-with-fraction"),
        pytest.param(SHORT, LONG_MS, {}, DONE, id="policy-overrides-operator"),
        pytest.param(SHORT, float("inf"), {}, DONE, id="policy-without-a-limit"),
        pytest.param(SHORT, SHORT_MS, {"max_runtime_sec": 600}, DONE, id="caller-sets-longer-time"),
        pytest.param(
            {}, LONG_MS, {"max_runtime_sec": 1}, UNFINISHED, id="caller-sets-shorter-time"
        ),
    ],
)
async def test_the_callers_time_overrides_the_policys_which_overrides_the_operators(
    tmp_path: Path, environ: dict[str, str], milliseconds: Any, spec: dict[str, Any], expected: str
) -> None:
    policy = {"executionTimeout": milliseconds, "ttl": 5}
    assert await status_after_job(tmp_path, environ, policy, **spec) == expected


def test_a_policy_without_a_valid_time_has_no_effect() -> None:
    times: list[Any] = [None, 0, -5, "5", [5], True, float("nan")]
    policies = [[], "600", {"ttl": LONG_MS}, *({"executionTimeout": time} for time in times)]
    for policy in policies:
        record = JobRecord.from_job({"id": "job-1", "policy": policy})
        assert record.limit_s is None
        record.write_to_log()
