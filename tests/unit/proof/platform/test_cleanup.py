"""Whatever fails, the endpoints are deleted, or named; a later run finds those that are left."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.runpod_api.endpoints import worker
from support.runpod_api.server import KEY, Fault, Runpod
from unit.proof.platform.conftest import Prove

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.apply import NO_WORKERS
from proof.platform.endpoints import ProofEndpoints
from proof.platform.plan import ProofPlan

ONE_STEP = ("--yes", "--only", "health")
LEFTOVER = "llm-worker-proof-0123abcd-main"


def read_problems(output: Path) -> dict[str, str | None]:
    """Return the problems in the report, by their steps."""
    rows = json.loads((output / "result.json").read_text())["rows"]
    return {row["observation"]: row["problem"] for row in rows}


def test_the_endpoint_is_created_observed_and_deleted(
    prove: Prove, runpod: Runpod, output: Path
) -> None:
    status, printed = prove(*ONE_STEP)
    assert (status, runpod.endpoints) == (0, {}), printed
    assert [call.verb for call in runpod.changes] == ["POST", "DELETE"]
    assert read_problems(output) == {"deployment": None, "health": None}


def test_a_failed_step_is_a_row_and_the_run_continues(
    prove: Prove, runpod: Runpod, output: Path
) -> None:
    runpod.faults.append(Fault("GET", 404, path_end="/health"))
    status, printed = prove("--yes", "--only", "health", "query")
    assert (status, runpod.endpoints) == (1, {}), printed
    assert [problem is None for problem in read_problems(output).values()] == [True, False, True]


@pytest.mark.parametrize("status", [422, 500])
def test_a_refused_creation_leaves_nothing(
    prove: Prove, runpod: Runpod, output: Path, status: int
) -> None:
    runpod.faults.append(Fault("POST", status, path_end="/serverless", times=9))
    code, printed = prove(*ONE_STEP)
    assert (code, runpod.endpoints) == (1, {}), printed
    assert f"POST /v2/serverless: {status}" in (read_problems(output)["deployment"] or "")


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


@pytest.mark.slow
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
    assert (
        read_problems(output)["deployment"]
        == f"no answer within 1 s (workers: 1 {state.lower()}{hint})"
    )


def test_a_step_without_a_response_ends_with_the_runs_time(
    prove: Prove, runpod: Runpod, output: Path
) -> None:
    runpod.faults.append(Fault("GET", 0, path_end="/health"))
    status, printed = prove("--yes", "--only", "health", "query", "--minutes", "0.03")
    assert (status, runpod.endpoints) == (1, {}), printed
    deployed, asked, later = read_problems(output).values()
    assert deployed is None
    # Less if the deployment took some of the time.
    assert asked in ("no result within 1 s", "no result within 2 s")
    assert later == "not performed: the run's time is over"


@pytest.mark.parametrize("status", [403, -1])
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


def test_a_queue_that_refuses_every_call_is_reported_step_by_step(
    prove: Prove, runpod: Runpod, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint answers its first job; then nothing works."""
    steps = ("chat", "run and stream", "cancel", "cold start", "failed start")
    original = runpod.take_fault

    def take_fault(verb: str, path: str) -> Fault | None:
        if runpod.poll_counts and path.startswith("/queue/"):
            return Fault(verb, 524)
        return original(verb, path)

    monkeypatch.setattr(runpod, "take_fault", take_fault)
    code, printed = prove("--yes", "--only", *steps)
    assert (code, runpod.endpoints) == (1, {}), printed
    deployed, *problems = read_problems(output).values()
    assert deployed is None
    assert ["524" in str(problem) for problem in problems] == [True] * 5, problems


# Entries that the list of the account's endpoints may have, and that say too little.
ENTRIES: tuple[Any, ...] = ({"id": "x", "name": ["chat"]}, {"name": "chat"}, {}, None)
# Contents of the list's response that are no such list.
FORMS: tuple[Any, ...] = ({}, {"endpoints": {"x": {}}}, [])


def plant_in_list(runpod: Runpod, edit: Callable[[Any], Any]) -> None:
    """Change the list of endpoints in all responses from now on."""
    runpod.faults.append(Fault("GET", 200, path_end="/serverless", times=10**9, edit=edit))


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_unreadable_entry_of_the_list_stops_no_deletion(
    prove: Prove, runpod: Runpod, entry: Any, is_first: bool
) -> None:
    def add_entry(content: Any) -> Any:
        others = content["endpoints"]
        return {"endpoints": [entry, *others] if is_first else [*others, entry]}

    plant_in_list(runpod, add_entry)
    runpod.add(name=LEFTOVER)
    code, printed = prove(*ONE_STEP)
    assert (code, runpod.endpoints) == (0, {}), printed
    assert "may be left" not in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        *(lambda _, form=form: form for form in FORMS),
        # All endpoints, without their names.
        lambda content: {"endpoints": [one["id"] for one in content["endpoints"]]},
        lambda content: {"endpoints": [{"id": one["id"]} for one in content["endpoints"]]},
    ],
)
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_list_of_another_form_still_deletes_known_endpoints_and_names_unknown_ones(
    prove: Prove, runpod: Runpod, edit: Callable[[Any], Any], is_lost: bool
) -> None:
    def begin(content: Any) -> Any:
        plant_in_list(runpod, edit)
        return content

    # The list of leftovers at the beginning is readable.
    runpod.faults.append(Fault("GET", 200, path_end="/serverless", edit=begin))
    if is_lost:
        runpod.faults.append(Fault("POST", -1, path_end="/serverless", takes_effect=True))
    code, printed = prove(*ONE_STEP)
    if not is_lost:
        assert runpod.endpoints == {}
        assert "may be left" not in printed
        return
    (left,) = runpod.endpoints.values()
    assert code == 1
    assert f"  {left['name']} (unknown id" in printed.split("may be left")[1]


def test_a_leftover_whose_id_is_unknown_is_named(prove: Prove, runpod: Runpod) -> None:
    other = LEFTOVER.replace("main", "broken")
    plant_in_list(runpod, lambda content: {"endpoints": [{"name": other}, *content["endpoints"]]})
    runpod.add(name=LEFTOVER)
    code, printed = prove("--yes", "--delete-leftovers")
    assert (code, runpod.endpoints) == (1, {})
    assert f"  {other} (unknown id" in printed.split("may be left")[1]


def test_the_endpoints_that_are_left_are_named_even_if_no_report_can_be_written(
    prove: Prove, runpod: Runpod, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output.write_text("a file")
    runpod.faults.append(Fault("DELETE", 500, times=10**9))
    with pytest.raises(FileExistsError):
        prove(*ONE_STEP)
    (left,) = runpod.endpoints.values()
    assert f"  {left['name']} ({left['id']})\n" in capsys.readouterr().err.split("may be left")[1]


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_deletion_that_fails_in_any_way_does_not_stop_the_others(
    runpod: Runpod, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    printed = list[str]()
    with closing(Api(KEY, f"{runpod.url}/v2", f"{runpod.url}/queue", lambda _: None)) as api:
        plan = ProofPlan(image="me/worker:1")
        endpoints = ProofEndpoints(api, plan, printed.append)
        ids = [endpoints.deploy(make(), 0) for make in (plan.main_request, plan.broken_request)]
        if not is_listed:
            plant_in_list(runpod, lambda _: [])
        # A response that no version of the client expects.
        delete = api.delete_endpoint

        def delete_endpoint(id: str) -> None:
            if id == ids[0]:
                raise ValueError("what is this?")
            delete(id)

        monkeypatch.setattr(api, "delete_endpoint", delete_endpoint)
        assert endpoints.delete_all() == {ids[0]: plan.main_request()["name"]}
    assert [*runpod.endpoints] == ids[:1]
    assert any(f"({ids[0]}): what is this?" in line for line in printed)
