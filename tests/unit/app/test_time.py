"""How long a job that runs a batch may take: the platform's word, the operator's, the caller's."""

from pathlib import Path
from typing import Any

import pytest
from support.batches import lines, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, tokens

LONG_MS, SHORT_MS = 600_000, 1_000
SHORT = {"EXECUTION_TIMEOUT_S": "1"}


async def status(root: Path, environ: dict[str, str], policy: Any = None, **spec: Any) -> str:
    """Return how a batch is when its job has ended: with so little time no line begins."""
    job: dict[str, Any] = {
        "id": "job-1",
        "input": {"batch": {"requests": lines(2), "endpoint": CHAT, **spec}},
    }
    if policy is not None:
        job["policy"] = policy
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine, **environ)
        (found,) = [chunk async for chunk in worker.handle(job)]
    assert ("run_with" in found) == (found["batch"]["status"] == "in_progress")
    assert len(engine.asked) == (2 if found["batch"]["status"] == "completed" else 0)
    return str(found["batch"]["status"])


async def test_a_job_has_ten_minutes_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    assert await status(tmp_path, {}) == "completed"


async def test_the_operator_says_how_long_jobs_take_by_default(tmp_path: Path) -> None:
    assert await status(tmp_path, SHORT) == "in_progress"


@pytest.mark.parametrize(
    ("milliseconds", "environ", "expected"),
    [
        (SHORT_MS, {}, "in_progress"),
        (SHORT_MS + 0.5, {}, "in_progress"),
        (LONG_MS, SHORT, "completed"),
        (float("inf"), SHORT, "completed"),
    ],
)
async def test_the_policy_of_a_job_goes_before_the_operators_word(
    tmp_path: Path, milliseconds: float, environ: dict[str, str], expected: str
) -> None:
    policy = {"executionTimeout": milliseconds, "ttl": 5}
    assert await status(tmp_path, environ, policy) == expected


@pytest.mark.parametrize(
    "policy",
    [
        {},
        [],
        "600",
        5,
        {"ttl": LONG_MS},
        *({"executionTimeout": value} for value in (None, 0, -5, "5", [5], True, float("nan"))),
    ],
    ids=str,
)
async def test_a_policy_without_a_time_changes_nothing(tmp_path: Path, policy: Any) -> None:
    assert await status(tmp_path, {}, policy) == "completed"
    assert await status(tmp_path / "other", SHORT, policy) == "in_progress"


async def test_the_caller_of_the_batch_has_the_last_word(tmp_path: Path) -> None:
    policy = {"executionTimeout": SHORT_MS}
    assert await status(tmp_path / "a", SHORT, policy, max_runtime_sec=600) == "completed"
    policy = {"executionTimeout": LONG_MS}
    assert await status(tmp_path / "b", {}, policy, max_runtime_sec=1) == "in_progress"
