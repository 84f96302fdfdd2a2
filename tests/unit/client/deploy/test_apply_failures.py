"""A failure in the middle of `deploy apply` leaves nothing that costs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.runpod_api.endpoints import worker
from support.runpod_api.server import Fault, Platform
from unit.client.deploy.conftest import FLAGS, Run

SETTINGS = ("--settings", "MODEL_NAME=org/model", "HF_TOKEN={{ RUNPOD_SECRET_hf }}")


def stopped(there: Platform) -> bool:
    return all(one["workers"]["max"] == 0 for one in there.endpoints.values())


@pytest.mark.parametrize(
    "result",
    [
        {"status": "FAILED", "error": "no weights"},
        {"status": "COMPLETED", "output": [{"error": {"message": "no weights"}}]},
        {"status": "TIMED_OUT"},
    ],
)
def test_a_new_endpoint_that_does_not_answer_may_start_no_workers(
    run: Run, there: Platform, result: dict[str, object]
) -> None:
    there.result = result
    status, out, err = run("apply", *FLAGS)
    assert (status, out) == (1, "")
    assert stopped(there)
    assert "the first request failed" in err
    assert "may start no workers now" in err


def test_the_next_run_goes_on_with_an_endpoint_that_was_stopped(run: Run, there: Platform) -> None:
    well, there.result = there.result, {"status": "FAILED", "error": "no weights"}
    run("apply", *FLAGS)
    there.result = well
    assert run("apply", *FLAGS)[0] == 0
    (endpoint,) = there.endpoints.values()
    assert endpoint["workers"]["max"] == 3


def test_an_endpoint_that_was_there_gets_back_what_it_had(run: Run, there: Platform) -> None:
    gpu = {"pools": ["AMPERE_48"], "count": 2, "excludedTypes": ["NVIDIA A40"]}
    gpu |= {"allowedCudaVersions": ["12.8"], "minCudaVersion": None}
    before = there.add(name="chat", env={"A": "1"}, gpu=gpu, flashboot="PRIORITY_FLASHBOOT")
    before = {**before}
    there.result = {"status": "FAILED", "error": "no weights"}
    status, _, err = run("apply", *FLAGS, *SETTINGS, "--request-count", "8")
    assert (status, list(there.endpoints.values())) == (1, [before])
    assert "has what it had before" in err


def test_a_job_that_has_waited_too_long_is_cancelled_and_the_log_shown(
    run: Run, there: Platform
) -> None:
    there.looks = 10**9
    there.log = [{"ts": "1", "source": "container", "line": "engine: out of memory"}]
    status, _, err = run("apply", *FLAGS, "--wait-s", "0.01")
    assert (status, there.jobs, stopped(there)) == (1, {}, True)
    assert "no answer within 0.01 s" in err
    assert "engine: out of memory" in err


def test_workers_that_stay_unhealthy_are_not_waited_for(run: Run, there: Platform) -> None:
    there.looks = 10**9
    there.workers.append(worker("w1", "UNHEALTHY"))
    status, _, err = run("apply", *FLAGS)
    assert (status, there.jobs, stopped(there)) == (1, {}, True)
    assert "no worker becomes healthy" in err


def test_an_interruption_stops_a_new_endpoint(run: Run, there: Platform) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    status, out, _ = run("apply", *FLAGS, sleep=interrupt)
    assert (status, out) == (130, "")
    assert (there.jobs, stopped(there)) == ({}, True)


def test_whoever_interrupts_the_clearing_up_is_told_what_is_left(run: Run, there: Platform) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    there.faults.append(Fault("PATCH", 503))
    status, _, err = run("apply", *FLAGS, sleep=interrupt)
    assert (status, stopped(there)) == (130, False)
    assert "endpoint ep1 may cost: stop or mend it in the console: interrupted" in err


@pytest.fixture
def _hears_hang_ups() -> Iterator[None]:
    """Let children hear SIGHUP also where these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hears_hang_ups")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_stops_a_new_endpoint(
    there: Platform, sent: signal.Signals, tmp_path: Path
) -> None:
    there.looks = 10**9
    places = ("--api-url", f"{there.url}/v2", "--queue-url", f"{there.url}/queue")
    words = ["-m", "llm_worker_client", "deploy", "apply", *places, *FLAGS]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, *words], env=environ, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        # From then on it knows the id of the first request.
        while process.poll() is None and not any("/status/" in call.path for call in there.calls):
            time.sleep(0.05)
        process.send_signal(sent)
        assert "may start no workers now" in process.stderr.read()
    assert (process.returncode, there.jobs, stopped(there)) == (130, {}, True)


def test_a_first_request_whose_answer_is_lost_is_sent_again(run: Run, there: Platform) -> None:
    there.faults.append(Fault("POST", 502, end="/run"))
    assert run("apply", *FLAGS)[0] == 0


def test_a_platform_without_free_gpus_is_told(run: Run, there: Platform) -> None:
    there.looks = 10**9
    there.workers.append(worker("w1", "THROTTLED"))
    _, _, err = run("apply", *FLAGS, "--wait-s", "0.01")
    assert "no GPU is free: name more pools" in err


def test_an_outage_while_waiting_stops_a_new_endpoint(run: Run, there: Platform) -> None:
    there.faults.append(Fault("GET", 503, end="/workers", times=5))
    status, _, err = run("apply", *FLAGS)
    assert (status, stopped(there)) == (1, True), err


def test_an_endpoint_that_can_not_be_stopped_is_named(run: Run, there: Platform) -> None:
    there.result = {"status": "FAILED", "error": "no weights"}
    there.faults.append(Fault("PATCH", 500, times=5))
    status, _, err = run("apply", *FLAGS)
    assert (status, stopped(there)) == (1, False)
    assert "endpoint ep1 may cost: stop or mend it in the console" in err


def test_a_refused_change_is_not_taken_back(run: Run, there: Platform) -> None:
    there.add(name="chat")
    there.faults.append(Fault("PATCH", 403))
    assert run("apply", *FLAGS)[0] == 1
    assert [call.verb for call in there.changes] == ["PATCH"]


def test_a_change_without_an_answer_is_taken_back(run: Run, there: Platform) -> None:
    before = {**there.add(name="chat")}
    there.faults.append(Fault("PATCH", 500, carried_out=True))
    assert run("apply", *FLAGS)[0] == 1
    assert list(there.endpoints.values()) == [before]


def test_a_creation_that_failed_after_its_effect_is_stopped(run: Run, there: Platform) -> None:
    there.faults.append(Fault("POST", 500, carried_out=True))
    assert run("apply", *FLAGS)[0] == 1
    assert len(there.endpoints) == 1
    assert stopped(there)


def test_one_that_someone_else_creates_meanwhile_stops_the_own_one(
    run: Run, there: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = there._create

    def late(body: dict[str, Any]) -> dict[str, Any]:
        there.add(name="chat")
        return create(body)

    monkeypatch.setattr(there, "_create", late)
    status, _, err = run("apply", *FLAGS, "--no-wait")
    assert (status, there.endpoints["ep2"]["workers"]["max"]) == (1, 0)
    assert "2 endpoints are named chat: ep1, ep2" in err


def test_a_creation_of_which_nothing_is_seen_is_told(run: Run, there: Platform) -> None:
    there.faults.append(Fault("POST", 503))
    status, _, err = run("apply", *FLAGS)
    assert (status, there.endpoints) == (1, {})
    assert "look in the console whether there is an endpoint chat now" in err
