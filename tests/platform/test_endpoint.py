"""The local endpoint's life: a worker that dies, several workers, faults, the end."""

import concurrent.futures
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import runpod
from support.engine.requests import ENDLESS
from support.processes.background import HUNG_S, wait_until
from support.processes.local_endpoint import READY, LocalEndpoint, local_endpoint
from support.processes.scripted_worker import COMMAND, ENVIRON

LONG: dict[str, Any] = {
    **{name: ENDLESS[name] for name in ("max_tokens", "n")},
    "extra_body": {"ignore_eos": True},
}
# Seconds; longer than the test waits.
GRACE_S = 10 * HUNG_S
WORKERS = 3


# They take whole starts of workers; those without an engine do the same below, and in
# unit/emulator/test_fleet.py.
@pytest.mark.slow
def test_a_worker_killed_mid_stream_gives_an_error_and_a_new_one_serves(
    make_endpoint: LocalEndpoint, openai_client: openai.OpenAI
) -> None:
    messages: Any = [{"role": "user", "content": "What does this worker do?"}]
    create = openai_client.chat.completions.create
    stream = create(model="demo", messages=messages, stream=True, **LONG)
    assert next(iter(stream)).choices
    make_endpoint.control("workers/worker-1/signal", {"signal": "SIGKILL"})
    with pytest.raises(openai.APIError, match="worker-1 exited while it ran this job"):
        list(stream)
    # Queued until the new worker is there.
    answer = create(model="demo", messages=messages, temperature=0)
    assert (answer.choices[0].message.content or "").startswith("This worker turns")
    assert "worker-1 exited by SIGKILL; it is started again in 1 s" in make_endpoint.output
    (worker,) = make_endpoint.control("workers")["workers"]
    assert (worker["starts"], worker["ready"]) == (2, True)


@pytest.mark.slow
def test_a_worker_whose_start_failed_is_not_called_ready(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={tmp_path}"]
    wrong = {"DTYPE": "fp16", "BASE_PATH": str(tmp_path)}
    with local_endpoint(command, {**worker_environ, **wrong}, tmp_path / "output") as endpoint:
        endpoint.wait_for_output("worker-1's start failed after")
        endpoint.wait_for_output("did you mean float16?")
        assert endpoint.call("health")["workers"]["unhealthy"] == 1
        # When it exits, the end of its log says so once more.
        endpoint.wait_for_output("worker-1 exited with status 1; it is started again in 2 s")
        endpoint.wait_for_output("did you mean float16?", times=2)
        assert "is ready after" not in endpoint.output
        assert READY not in endpoint.output


def command(logs: Path, *worker: str, workers: int = 1) -> list[str]:
    emulator = [sys.executable, "-m", "emulator", "--port", "0", "--logs", str(logs)]
    return [*emulator, "--workers", str(workers), "--grace", str(GRACE_S), "--", *worker]


@contextmanager
def serving_scripted(folder: Path, workers: int) -> Iterator[LocalEndpoint]:
    """Workers of the real SDK, without an engine."""
    with (
        local_endpoint(
            command(folder, *COMMAND, workers=workers), ENVIRON, folder / "output"
        ) as endpoint,
        pytest.MonkeyPatch.context() as patch,
    ):
        endpoint.wait_for_output("is ready after", times=workers)
        endpoint.wait_for_output(READY)  # the endpoint asked for the model's name before: a job
        patch.setattr(runpod, "endpoint_url_base", endpoint.api_url)
        yield endpoint


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    with serving_scripted(tmp_path_factory.mktemp("scripted"), WORKERS) as endpoint:
        yield endpoint


def run_sync(*yields: object) -> dict[str, Any]:
    """Run a job that yields these outputs; return its status object."""
    client = runpod.Endpoint("local", api_key="any").rp_client
    report: dict[str, Any] = client.post(
        "local/runsync", {"input": {"yields": yields}}, timeout=HUNG_S
    )
    return report


def test_several_workers_share_the_queue_and_a_dead_one_is_replaced(
    scripted: LocalEndpoint,
) -> None:
    def run(number: int) -> dict[str, Any]:
        return run_sync(number)

    workers = set[str]()

    def have_all_served() -> bool:
        with concurrent.futures.ThreadPoolExecutor(8 * WORKERS) as pool:
            reports = list(pool.map(run, range(100)))
        assert [report["output"] for report in reports] == [[number] for number in range(100)]
        workers.update(report["workerId"] for report in reports)
        return workers == {"worker-1", "worker-2", "worker-3"}

    wait_until(have_all_served)
    scripted.control("workers/worker-2/signal", {"signal": "SIGKILL"})
    scripted.wait_for_output("worker-2 exited by SIGKILL")
    scripted.wait_for_output("worker-2 is ready after", times=2)


def test_the_sdk_behaves_under_faults_as_it_was_measured_to(scripted: LocalEndpoint) -> None:
    """What it does is not for us to like: the worker and its tests rely on knowing it."""

    def under(*faults: dict[str, Any]) -> dict[str, Any]:
        for fault in faults:
            scripted.control("faults", fault)
        return run_sync("a", "b")

    def chunks(report: dict[str, Any]) -> int:
        assert report["output"] == ["a", "b"]
        return len(scripted.control(f"jobs/{report['id']}")["chunks"])

    # A post that the platform refuses is tried three times; then the chunk is gone, and the job
    # completes all the same.
    assert chunks(under({"on": "stream", "do": "status", "calls": 1})) == 2
    assert chunks(under({"on": "stream", "do": "status", "calls": 3})) == 1
    # One whose connection breaks is not tried again.
    assert chunks(under({"on": "stream", "do": "reset", "calls": 1})) == 1
    assert chunks(under({"on": "stream", "do": "lose", "calls": 1})) == 2
    assert chunks(under({"on": "done", "do": "lose", "calls": 1})) == 2
    # So a result can be lost, and its caller waits until the job times out.
    scripted.control("faults", {"on": "done", "do": "reset", "calls": 1})
    client = runpod.Endpoint("local", api_key="any")
    job = client.run({"yields": ["a"]})
    assert list(itertools.islice(job.stream(), 1)) == ["a"]
    assert job.status() == "IN_PROGRESS"
    assert run_sync("next")["output"] == ["next"]
    assert job.status() == "IN_PROGRESS"
    assert scripted.control("faults") == {"faults": []}


def test_ctrl_c_lets_running_jobs_end_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with serving_scripted(tmp_path, workers=1) as endpoint:
        client = runpod.Endpoint("local", api_key="any")
        job = client.run({"yields": ["begun", "hang"]})
        # The hanging job keeps its worker for the whole grace, unless there is a second Ctrl-C.
        assert next(iter(job.stream())) == "begun"
        endpoint.press_ctrl_c()
        endpoint.wait_for_output(
            f"Stopping; running jobs (1) get {GRACE_S:g} s. Ctrl-C again: stop at once."
        )
        with pytest.raises(runpod.endpoint.runner.requests.HTTPError, match="503"):
            client.run({"yields": ["late"]})
        endpoint.press_ctrl_c()
        assert endpoint.ended() == 0
        assert endpoint.left_behind() == []
