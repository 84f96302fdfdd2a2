"""The examples for monitoring: a dashboard, alerts and configurations of Prometheus."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from support import ROOT
from support.processes.background import HUNG_S, start_command, wait_until
from support.processes.commands import HOME
from support.processes.servers import KEY, ServerProcess

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


DASHBOARD = json.loads((EXAMPLES / "grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
ALERTS = (EXAMPLES / "alerts.yml").read_text()
ALERT_SERIES = sorted(set(re.findall(r"\b(?:worker_|vllm:)\w+", ALERTS)))
# The interval is long, because a rate is not a number without requests in it.
WORDS = {"$instance": ".*", "$__rate_interval": "10m"}
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="no Prometheus installed"
)


@needs_prometheus
def test_promtool_accepts_the_examples_configuration() -> None:
    command = ["promtool", "check", "config", str(EXAMPLES / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
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
