"""Whatever fails, the endpoints are deleted, or named; a later run finds those that are left."""

import json
from pathlib import Path

import pytest
from support.runpod_api.endpoints import worker
from support.runpod_api.server import Fault, Runpod
from unit.proof.platform.conftest import Prove

from llm_worker_client.deploy.apply import NO_WORKERS

ONE_STEP = ("--yes", "--only", "health")
LEFTOVER = "llm-worker-proof-0123abcd-main"


def read_problem(output: Path) -> str | None:
    """Return the problem of the deployment in the report."""
    rows = json.loads((output / "result.json").read_text())["rows"]
    problem: str | None = rows[0]["problem"]
    return problem


def test_the_endpoint_is_created_observed_and_deleted(
    prove: Prove, runpod: Runpod, output: Path
) -> None:
    status, printed = prove(*ONE_STEP)
    assert (status, runpod.endpoints) == (0, {}), printed
    assert [call.verb for call in runpod.changes] == ["POST", "DELETE"]
    rows = json.loads((output / "result.json").read_text())["rows"]
    assert [row["observation"] for row in rows] == ["deployment", "health"]


def test_a_failed_step_is_a_row_and_the_run_continues(
    prove: Prove, runpod: Runpod, output: Path
) -> None:
    runpod.faults.append(Fault("GET", 404, path_end="/health"))
    status, printed = prove("--yes", "--only", "health", "query")
    assert (status, runpod.endpoints) == (1, {}), printed
    rows = json.loads((output / "result.json").read_text())["rows"]
    assert [row["problem"] is None for row in rows] == [True, False, True]


@pytest.mark.parametrize("status", [401, 422, 429, 500])
def test_a_refused_creation_leaves_nothing(
    prove: Prove, runpod: Runpod, output: Path, status: int
) -> None:
    runpod.faults.append(Fault("POST", status, path_end="/serverless", times=9))
    code, printed = prove(*ONE_STEP)
    assert (code, runpod.endpoints) == (1, {}), printed
    assert f"POST /v2/serverless: {status}" in (read_problem(output) or "")


@pytest.mark.parametrize("lost_lookups", [0, 5, 10], ids=["none", "first", "both"])
def test_an_endpoint_whose_creation_had_no_response_is_deleted(
    prove: Prove, runpod: Runpod, monkeypatch: pytest.MonkeyPatch, lost_lookups: int
) -> None:
    runpod.faults.append(Fault("POST", -1, path_end="/serverless", takes_effect=True))
    # The list of leftovers at the beginning has a response.
    original = runpod.take_fault

    def take_fault(verb: str, path: str) -> Fault | None:
        fault = original(verb, path)
        if fault and fault.verb == "POST":
            runpod.faults.append(Fault("GET", 503, path_end="/serverless", times=lost_lookups))
        return fault

    monkeypatch.setattr(runpod, "take_fault", take_fault)
    prove(*ONE_STEP)
    assert runpod.endpoints == {}


@pytest.mark.parametrize(
    ("state", "hint"),
    [("THROTTLED", "; no GPU is free: name more pools"), ("INITIALIZING", "")],
)
def test_a_run_whose_worker_never_starts_ends_in_time(
    prove: Prove, runpod: Runpod, output: Path, state: str, hint: str
) -> None:
    runpod.polls_until_done = 10**9
    runpod.workers.append(worker("w1", state))
    status, printed = prove(*ONE_STEP, "--minutes", "0.1")
    assert (status, runpod.endpoints) == (1, {}), printed
    assert read_problem(output) == f"no answer within 1 s (workers: 1 {state.lower()}{hint})"


def test_a_step_without_a_response_ends_with_the_runs_time(
    prove: Prove, runpod: Runpod, output: Path
) -> None:
    runpod.faults.append(Fault("GET", 0, path_end="/health"))
    status, printed = prove("--yes", "--only", "health", "query", "--minutes", "0.03")
    assert (status, runpod.endpoints) == (1, {}), printed
    rows = json.loads((output / "result.json").read_text())["rows"]
    assert [row["problem"] for row in rows] == [
        None,
        "no result within 2 s",
        "not performed: the run's time is over",
    ]


@pytest.mark.parametrize("status", [403, 500, -1])
def test_an_endpoint_that_cannot_be_deleted_is_stopped_and_named(
    prove: Prove, runpod: Runpod, status: int
) -> None:
    runpod.faults.append(Fault("DELETE", status, times=10**9))
    code, printed = prove(*ONE_STEP)
    (left,) = runpod.endpoints.values()
    assert (code, left["workers"]["max"]) == (1, 0)
    assert runpod.changes[-1].body == NO_WORKERS
    assert f"  {left['name']} ({left['id']})\n" in printed.split("may be left")[1]
    runpod.faults.clear()
    assert prove(*ONE_STEP)[0] == 0
    assert runpod.endpoints == {}


def test_leftovers_are_deleted_and_other_endpoints_stay(prove: Prove, runpod: Runpod) -> None:
    others = [LEFTOVER.replace("-main", ""), f"my-{LEFTOVER}", "llm-worker-proof-zz-main", "chat"]
    for name in [*others, LEFTOVER, f"{LEFTOVER} -fb"]:
        runpod.add(name=name)
    status, printed = prove("--yes", "--delete-leftovers")
    assert (status, [one["name"] for one in runpod.endpoints.values()]) == (0, others), printed


def test_a_list_without_a_response_still_deletes_the_known_endpoint(
    prove: Prove, runpod: Runpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = runpod.take_fault

    def take_fault(verb: str, path: str) -> Fault | None:
        if runpod.calls[-1].path.endswith("/health"):
            runpod.faults.append(Fault("GET", 500, path_end="/serverless", times=9))
        return original(verb, path)

    monkeypatch.setattr(runpod, "take_fault", take_fault)
    prove(*ONE_STEP)
    assert runpod.endpoints == {}


@pytest.mark.parametrize("status", [429, 500, 524])
def test_a_queue_that_refuses_every_call_is_reported_step_by_step(
    prove: Prove, runpod: Runpod, output: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The endpoint answers its first job; then nothing works."""
    steps = ("chat", "run and stream", "cancel", "cold start", "failed start")
    original = runpod.take_fault

    def take_fault(verb: str, path: str) -> Fault | None:
        if runpod.poll_counts and path.startswith("/queue/"):
            return Fault(verb, status)
        return original(verb, path)

    monkeypatch.setattr(runpod, "take_fault", take_fault)
    code, printed = prove("--yes", "--only", *steps)
    assert (code, runpod.endpoints) == (1, {}), printed
    rows = json.loads((output / "result.json").read_text())["rows"]
    problems = [row["problem"] for row in rows]
    assert problems[0] is None
    assert [str(status) in str(problem) for problem in problems[1:]] == [True] * 5, problems


def test_an_endpoint_that_can_be_neither_used_nor_found_is_named(
    prove: Prove, runpod: Runpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job fails, and the endpoints can't be listed afterwards."""
    runpod.result = {"status": "FAILED", "workerId": "w1", "error": "no"}
    original = runpod.take_fault

    def take_fault(verb: str, path: str) -> Fault | None:
        if runpod.poll_counts and path.endswith("/serverless"):
            return Fault(verb, 500)
        return original(verb, path)

    monkeypatch.setattr(runpod, "take_fault", take_fault)
    code, printed = prove(*ONE_STEP)
    (left,) = runpod.endpoints.values()
    assert (code, left["workers"]["max"]) == (1, 0)
    assert f"  {left['name']} (unknown id" in printed.split("may be left")[1]
