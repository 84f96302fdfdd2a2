"""A failure during `deploy apply` leaves nothing that costs money."""

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.runpod_api.endpoints import worker
from support.runpod_api.server import Fault, Runpod
from unit.client.conftest import CLIENT
from unit.client.deploy.conftest import FLAGS, Run, addresses

from llm_worker_client.deploy.command import exit_signals_interrupt

NO_WEIGHTS = {"status": "FAILED", "error": "no weights"}
ERROR_OUTPUT = {"status": "COMPLETED", "output": [{"error": {"message": "no weights"}}]}
LINE = {"ts": "1", "source": "container", "line": "out of memory"}
UNHEALTHY, THROTTLED = worker("w1", "UNHEALTHY"), worker("w1", "THROTTLED")
SHORT = ["--wait-s", "0.01"]
FIRST_REQUEST, STOPPED = "the first request failed", "can start no workers now"


def is_stopped(runpod: Runpod) -> bool:
    return [one["workers"]["max"] for one in runpod.endpoints.values()] == [0]


@pytest.mark.parametrize(
    ("states", "words", "messages"),
    [
        ({"result": NO_WEIGHTS}, [], [FIRST_REQUEST, "no weights"]),
        ({"result": ERROR_OUTPUT}, [], [FIRST_REQUEST, "no weights"]),
        ({"result": {"status": "TIMED_OUT"}}, [], [FIRST_REQUEST]),
        (
            {"polls_until_done": 10**9, "log": [LINE]},
            SHORT,
            ["no answer within 0.01 s", "  out of memory"],
        ),
        ({"polls_until_done": 10**9, "workers": [UNHEALTHY]}, [], ["no worker becomes healthy"]),
        (
            {"polls_until_done": 10**9, "workers": [THROTTLED]},
            SHORT,
            ["no GPU is free: name more pools"],
        ),
        ({"faults": [Fault("GET", 503, path_end="/workers", times=5)]}, [], ["503"]),
    ],
    ids=[
        "failed job",
        "error as output",
        "job timed out",
        "no answer",
        "unhealthy",
        "throttled",
        "outage",
    ],
)
def test_a_new_endpoint_that_does_not_answer_may_start_no_workers(
    run: Run, runpod: Runpod, states: dict[str, Any], words: list[str], messages: list[str]
) -> None:
    for name, value in states.items():
        setattr(runpod, name, copy.deepcopy(value))
    status, out, err = run("apply", *FLAGS, *words)
    assert (status, out, runpod.jobs, is_stopped(runpod)) == (1, "", {}, True)
    for text in (*messages, STOPPED):
        assert text in err


def test_the_next_run_continues_with_a_stopped_endpoint(run: Run, runpod: Runpod) -> None:
    healthy_result, runpod.result = runpod.result, NO_WEIGHTS
    run("apply", *FLAGS)
    runpod.result = healthy_result
    assert run("apply", *FLAGS)[0] == 0
    (endpoint,) = runpod.endpoints.values()
    assert endpoint["workers"]["max"] == 3


def test_an_existing_endpoint_gets_its_previous_values_back(run: Run, runpod: Runpod) -> None:
    gpu = {"pools": ["AMPERE_48"], "count": 2, "excludedTypes": ["NVIDIA A40"]}
    gpu |= {"allowedCudaVersions": ["12.8"], "minCudaVersion": None}
    added = runpod.add(name="chat", env={"A": "1"}, gpu=gpu, flashboot="PRIORITY_FLASHBOOT")
    before = {**added}
    runpod.result = NO_WEIGHTS
    words = ("--settings", "MODEL_NAME=org/model", "--request-count", "8")
    status, _, err = run("apply", *FLAGS, *words)
    assert (status, list(runpod.endpoints.values())) == (1, [before])
    assert "is restored" in err


def interrupt(_: float) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_cleanup_names_the_endpoint_that_is_left(run: Run, runpod: Runpod) -> None:
    runpod.faults.append(Fault("PATCH", 503))
    status, _, err = run("apply", *FLAGS, sleep=interrupt)
    assert (status, is_stopped(runpod)) == (130, False)
    assert "endpoint ep1 may cause costs: stop or correct it in the console: interrupted" in err


@pytest.fixture
def _deliver_sighup() -> Iterator[None]:
    """Let child processes receive SIGHUP even if these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_deliver_sighup")
@pytest.mark.parametrize(
    ("stop_signal", "faults", "has_begun"),
    [
        (signal.SIGHUP, [], lambda runpod: any("/status/" in call.path for call in runpod.calls)),
        # The command doesn't know yet that the endpoint exists.
        (signal.SIGINT, [Fault("POST", 0, takes_effect=True)], lambda runpod: runpod.endpoints),
    ],
    ids=["while it polls its first request", "while the creating request is open"],
)
def test_a_signal_stops_a_new_endpoint(
    runpod: Runpod,
    stop_signal: signal.Signals,
    faults: list[Fault],
    has_begun: Callable[[Runpod], object],
) -> None:
    runpod.polls_until_done, runpod.faults = 10**9, copy.deepcopy(faults)
    words = ["-m", "llm_worker_client", "deploy", "apply", *addresses(runpod), *FLAGS]
    environ = os.environ | {"PYTHONPATH": str(CLIENT)}
    with subprocess.Popen(
        [sys.executable, *words], env=environ, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        while process.poll() is None and not has_begun(runpod):
            time.sleep(0.02)
        process.send_signal(stop_signal)
        assert STOPPED in process.stderr.read()
    assert (process.returncode, runpod.jobs, is_stopped(runpod)) == (130, {}, True)


def test_a_first_request_without_a_response_is_sent_again(run: Run, runpod: Runpod) -> None:
    runpod.faults.append(Fault("POST", 502, path_end="/run"))
    assert run("apply", *FLAGS)[0] == 0


def test_an_endpoint_that_cannot_be_stopped_is_named(run: Run, runpod: Runpod) -> None:
    runpod.result = NO_WEIGHTS
    runpod.faults.append(Fault("PATCH", 500, times=5))
    status, _, err = run("apply", *FLAGS)
    assert (status, is_stopped(runpod)) == (1, False)
    assert "endpoint ep1 may cause costs: stop or correct it in the console" in err


def test_a_refused_change_is_not_reverted(run: Run, runpod: Runpod) -> None:
    runpod.add(name="chat")
    runpod.faults.append(Fault("PATCH", 403))
    assert run("apply", *FLAGS)[0] == 1
    assert [call.verb for call in runpod.changes] == ["PATCH"]


def test_a_change_without_a_response_is_reverted(run: Run, runpod: Runpod) -> None:
    before = {**runpod.add(name="chat")}
    runpod.faults.append(Fault("PATCH", 500, takes_effect=True))
    assert run("apply", *FLAGS)[0] == 1
    assert list(runpod.endpoints.values()) == [before]
    # The change was not sent again.
    assert [call.body == runpod.changes[0].body for call in runpod.changes] == [True, False]


def test_an_endpoint_whose_creation_failed_after_its_effect_is_stopped(
    run: Run, runpod: Runpod
) -> None:
    runpod.faults.append(Fault("POST", 500, takes_effect=True))
    assert run("apply", *FLAGS)[0] == 1
    assert is_stopped(runpod)


@pytest.mark.parametrize("entry", [{"id": "x", "name": None}, {}, "x"])
def test_an_unreadable_entry_of_the_list_does_not_stop_the_roll_back(
    run: Run, runpod: Runpod, entry: Any
) -> None:
    def add_entry(content: Any) -> Any:
        return {"endpoints": [entry, *content["endpoints"]]}

    runpod.faults += [
        Fault("POST", 500, takes_effect=True),
        Fault("GET", 200, path_end="/serverless", times=9, edit=add_entry),
    ]
    assert run("apply", *FLAGS)[0] == 1
    assert is_stopped(runpod)


@pytest.mark.parametrize("content", [{}, {"endpoints": [{"name": "chat"}]}])
def test_a_list_of_another_form_points_to_the_console(
    run: Run, runpod: Runpod, content: Any
) -> None:
    runpod.faults += [
        Fault("GET", 200, path_end="/serverless", edit=lambda content: content),
        Fault("POST", -1, takes_effect=True),
        Fault("GET", 200, path_end="/serverless", times=9, edit=lambda _: content),
    ]
    status, _, err = run("apply", *FLAGS)
    assert (status, is_stopped(runpod)) == (1, False)
    assert "check in the console whether there is an endpoint chat now" in err


@pytest.mark.parametrize("content", [{}, {"workers": ["w1"], "summary": []}])
def test_the_reason_of_a_failure_is_reported_although_its_worker_is_unknown(
    run: Run, runpod: Runpod, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    runpod.result = NO_WEIGHTS
    original = runpod.take_fault

    def take_fault(verb: str, path: str) -> Fault | None:
        if path.endswith("/workers") and runpod.poll_counts:
            return Fault(verb, 200, edit=lambda _: content)
        return original(verb, path)

    monkeypatch.setattr(runpod, "take_fault", take_fault)
    status, _, err = run("apply", *FLAGS)
    assert (status, is_stopped(runpod)) == (1, True)
    assert FIRST_REQUEST in err or "no valid workers" in err


def test_a_failed_creation_without_a_trace_points_to_the_console(run: Run, runpod: Runpod) -> None:
    runpod.faults.append(Fault("POST", 503))
    status, _, err = run("apply", *FLAGS)
    assert (status, runpod.endpoints, len(runpod.changes)) == (1, {}, 1)
    assert "check in the console whether there is an endpoint chat now" in err


def test_a_new_endpoint_is_stopped_if_another_one_has_its_name(
    run: Run, runpod: Runpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = runpod._create

    def create_second(body: dict[str, Any]) -> dict[str, Any]:
        runpod.add(name="chat")
        return create(body)

    monkeypatch.setattr(runpod, "_create", create_second)
    status, _, err = run("apply", *FLAGS, "--no-wait")
    assert (status, runpod.endpoints["ep2"]["workers"]["max"]) == (1, 0)
    assert "2 endpoints are named chat: ep1, ep2" in err


@pytest.mark.usefixtures("_deliver_sighup")
def test_only_the_first_exit_signal_interrupts() -> None:
    """A closed terminal may send several signals, while the roll-back runs."""
    signals = (signal.SIGHUP, signal.SIGTERM)
    with exit_signals_interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        for number in signals:
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in signals] == [signal.SIG_DFL] * 2
