"""Debian's Prometheus on a free port, with the example's configuration and short intervals."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from support import ROOT
from support.processes.background import HUNG_S, start_command, wait_until
from support.processes.commands import HOME

EXAMPLES = ROOT / "examples" / "monitoring"


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

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
    """Start Prometheus with the example, which scrapes ``target`` every second."""
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
