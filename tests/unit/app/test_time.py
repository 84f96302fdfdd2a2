"""How long a job that runs a batch may take: the platform's word, the operator's, the caller's."""

from pathlib import Path
from typing import Any

import pytest
from support.batches import lines, worker_at
from support.engine.scripted import CHAT, ScriptedEngine, tokens

LONG_MS, SHORT_MS = 600_000, 1_000
SHORT = {"EXECUTION_TIMEOUT_S": "1"}
DONE, GOES_ON = "completed", "in_progress"


async def status(root: Path, environ: dict[str, str], policy: Any = None, **spec: Any) -> str:
    """Return how a batch is when its job has ended: with so little time no line begins."""
    batch = {"requests": lines(2), "endpoint": CHAT, **spec}
    job = {"id": "job-1", "input": {"batch": batch}, "policy": policy}
    with ScriptedEngine(*tokens("a")) as engine:
        worker = worker_at(root, engine, **environ)
        (found,) = [chunk async for chunk in worker.handle(job)]
    assert ("run_with" in found) == (found["batch"]["status"] == GOES_ON)
    assert len(engine.asked) == (2 if found["batch"]["status"] == DONE else 0)
    return str(found["batch"]["status"])


@pytest.mark.parametrize(
    ("environ", "milliseconds", "spec", "expected"),
    [
        pytest.param({}, None, {}, DONE, id="ten-minutes-by-default"),
        pytest.param(SHORT, None, {}, GOES_ON, id="the-operator"),
        pytest.param({}, SHORT_MS, {}, GOES_ON, id="the-policy"),
        pytest.param({}, SHORT_MS + 0.5, {}, GOES_ON, id="the-policy-in-fractions"),
        pytest.param(SHORT, LONG_MS, {}, DONE, id="the-policy-before-the-operator"),
        pytest.param(SHORT, float("inf"), {}, DONE, id="the-policy-without-a-limit"),
        pytest.param(SHORT, SHORT_MS, {"max_runtime_sec": 600}, DONE, id="the-caller-for-longer"),
        pytest.param({}, LONG_MS, {"max_runtime_sec": 1}, GOES_ON, id="the-caller-for-less"),
    ],
)
async def test_the_caller_goes_before_the_policy_and_that_before_the_operator(
    tmp_path: Path, environ: dict[str, str], milliseconds: Any, spec: dict[str, Any], expected: str
) -> None:
    policy = {"executionTimeout": milliseconds, "ttl": 5}
    assert await status(tmp_path, environ, policy, **spec) == expected


async def test_a_policy_without_a_time_changes_nothing(tmp_path: Path) -> None:
    times: list[Any] = [None, 0, -5, "5", [5], True, float("nan")]
    policies = [[], "600", {"ttl": LONG_MS}, *({"executionTimeout": time} for time in times)]
    for number, policy in enumerate(policies):
        assert await status(tmp_path / f"{number}", {}, policy) == DONE
        assert await status(tmp_path / f"{number}-short", SHORT, policy) == GOES_ON
