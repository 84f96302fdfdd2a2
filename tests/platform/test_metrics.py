"""Metrics that outlive their worker, and the examples of a dashboard and of Prometheus' files."""

import asyncio
import json
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
import yaml
from support import ROOT
from support.metrics import Push, Receiver, otlp_receiver
from support.processes.background import HUNG_S, poll_until, start_command, wait_until
from support.processes.commands import HOME
from support.processes.emulated_endpoint import EmulatedEndpoint, EndpointFactory
from support.processes.servers import KEY, ServerProcess

from emulator import Status

EXAMPLES = ROOT / "examples" / "monitoring"


@dataclass(frozen=True)
class Prometheus:
    """Debian's Prometheus on a free port."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression; fail if it is not valid."""
        parameters = {"query": expression}
        response = httpx.get(f"{self.url}/api/v1/query", params=parameters, timeout=HUNG_S)
        assert response.status_code == 200, response.text
        series: list[dict[str, Any]] = response.json()["data"]["result"]
        return series


@contextmanager
def prometheus_server(folder: Path, target: str, key: str) -> Iterator[Prometheus]:
    """Start it with the example's configuration, but scrape ``target`` every second."""
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    scrape |= {"scheme": "http", "static_configs": [{"targets": [target]}]}
    scrape["authorization"]["credentials"] = key
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": "127.0.0.1:0",
    }
    command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
    with start_command(command, HOME, folder / "log") as running:
        wait_until(lambda: running.listening_port() or running.process.poll() is not None)
        assert running.process.poll() is None, running.output
        server = Prometheus(f"http://127.0.0.1:{running.listening_port()}")
        running.wait_for_output("Server is ready to receive web requests")
        yield server


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "ignore_eos": True}
HEADER = "canary-of-the-receiver"
JOBS: list[dict[str, Any]] = [
    {"prompt": "Hi", "sampling_params": {"max_tokens": 40, "ignore_eos": True}, "stream": True},
    {"openai_route": "/v1/chat/completions", "openai_input": CHAT},
    {"openai_route": "/v1/nothing"},
]
COUNTERS = {
    "taken": "worker_jobs_taken_total",
    "finished": "worker_jobs_finished_total",
    "chunks": "worker_chunks_total",
    "first tokens": "worker_first_token_seconds",
    "tokens": "vllm:generation_tokens_total",
}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(
    start_endpoint: EndpointFactory, receiver: Receiver
) -> AsyncIterator[EmulatedEndpoint]:
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={HEADER}",
        "OTEL_SERVICE_NAME": "chat",
    }
    async with start_endpoint(**settings) as running:
        yield running


def counters(push: Push) -> dict[str, float]:
    return {name: push.value(metric) for name, metric in COUNTERS.items()}


async def wait_for_taken(receiver: Receiver, count: float) -> Push:
    """Wait for a push after the worker has taken and finished a number of jobs."""
    await poll_until(lambda: counters(receiver.pushes[-1])["finished"] >= count)
    return receiver.pushes[-1]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_worker_that_is_killed_a_second_after_its_last_job_has_pushed_all_counters(
    endpoint: EmulatedEndpoint, receiver: Receiver
) -> None:
    # The first push has the values before the first job, so that all increases count from 0.
    await poll_until(lambda: receiver.pushes)
    assert counters(receiver.pushes[0])["taken"] == 0
    before = counters(await wait_for_taken(receiver, 1))
    jobs = await asyncio.gather(*(endpoint.run(job) for job in JOBS * 5))
    # The platform kills an idle worker without a signal that it could handle.
    await asyncio.sleep(1)
    worker = endpoint.emulator.queue.get_worker("worker-1").process
    assert worker
    worker.send_signal(signal.SIGKILL)
    await asyncio.to_thread(endpoint.worker.process.wait)

    assert [job.status for job in jobs] == [Status.COMPLETED, Status.COMPLETED, Status.FAILED] * 5
    last = receiver.pushes[-1]
    increases = {name: count - before[name] for name, count in counters(last).items()}
    assert increases == {
        "taken": len(jobs),
        "finished": len(jobs),
        "chunks": sum(len(job.output or []) for job in jobs),
        "first tokens": 5,
        "tokens": 5 * (40 + 30),
    }
    assert last.value("worker_jobs_finished_total", code="404") == 5
    assert last.value("worker_jobs_running") == 0
    assert last.resource["service.name"] == "chat"
    assert last.resource["service.instance.id"] == "worker-1"
    assert last.headers["x-key"] == HEADER
    assert HEADER not in endpoint.log


# The examples for operators:

DASHBOARD = json.loads((EXAMPLES / "grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
ALERTS = (EXAMPLES / "alerts.yml").read_text()
ALERT_SERIES = sorted(set(re.findall(r"\b(?:worker_|vllm:)\w+", ALERTS)))
WORDS = {"$instance": ".*", "$__rate_interval": "30s"}
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="no Prometheus installed"
)


@needs_prometheus
def test_promtool_accepts_the_examples_configuration() -> None:
    command = ["promtool", "check", "config", str(EXAMPLES / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_prometheus
def test_every_expression_of_the_dashboard_and_series_of_the_alerts_has_data_after_some_requests(
    server: ServerProcess, serve_client: openai.OpenAI, tmp_path: Path
) -> None:
    target = server.url.removeprefix("http://")
    with prometheus_server(tmp_path, target, KEY) as prometheus:
        wait_until(lambda: prometheus.query("up == 1"))

        def missing() -> list[str]:
            """Send a streamed request, and return the expressions without data."""
            create = serve_client.completions.create
            assert [*create(model="demo", prompt="Hi", max_tokens=20, stream=True)]
            expressions = [*map(fill_in, EXPRESSIONS), *ALERT_SERIES]
            return [each for each in expressions if not prometheus.query(each)]

        wait_until(lambda: not missing())
        for name in ("worker_first_token_seconds", "worker_queue_seconds"):
            expression = next(each for each in EXPRESSIONS if name in each)
            (series,) = prometheus.query(fill_in(expression))
            assert 0 < float(series["value"][1]) < 60
        assert prometheus.query('worker_jobs_running{job="llm-worker"} >= 0')


def fill_in(expression: str) -> str:
    """Return an expression with values for the dashboard's variables."""
    for variable, value in WORDS.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def test_the_dashboard_has_the_form_that_grafana_needs() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    assert (DASHBOARD["uid"], DASHBOARD.get("id")) == ("llm-worker", None)
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    sources = [variables["instance"]["datasource"]]
    for panel in PANELS:
        assert panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        sources += [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)
    used = {name for text in EXPRESSIONS for name in re.findall(r"\$(\w+)", text)}
    assert used == {"instance", "__rate_interval"}


def test_the_dashboards_panels_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


def test_the_configuration_for_pushes_names_the_workers_own_attribute() -> None:
    config = yaml.safe_load((EXAMPLES / "prometheus-otlp.yml").read_text())
    assert config["otlp"] == {"promote_resource_attributes": ["runpod.endpoint.id"]}
