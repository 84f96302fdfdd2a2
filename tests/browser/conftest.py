"""Fixtures for tests of the console page: chromium, its pages, and a local endpoint."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.pages import Pages
from playwright.sync_api import Browser, expect, sync_playwright
from support import ROOT
from support.models.lora import make_adapter
from support.processes.background import HUNG_S
from support.processes.servers import READY, LocalEndpoint, local_endpoint

OPTIONS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
).split()

expect.set_options(timeout=HUNG_S * 1000)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Return Debian's browser. Without it, skip the tests, or fail them if they must run."""
    path = shutil.which("chromium")
    if path is None:
        stop = pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip
        stop("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def pages(chromium: Browser) -> Iterator[Pages]:
    """Return the pages of a test. At its end, check that they reported no problem."""
    opened = Pages(chromium)
    yield opened
    opened.close()
    assert (opened.unexpected, opened.missing) == ([], [])


@pytest.fixture(scope="session")
def console_endpoint(
    worker_environ: dict[str, str], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalEndpoint]:
    """Start `make endpoint` once per session, with an adapter and a price.

    The platform queues a job again if its worker is lost, so that batches continue by themselves.
    """
    folder = tmp_path_factory.mktemp("endpoint")
    make_adapter(folder / "volume" / "adapters" / "shout", demo_model)
    environ = {
        **worker_environ,
        "BASE_PATH": str(folder / "volume"),
        "SERVED_MODEL_NAME": "demo",
        "ENABLE_LORA": "1",
        "MAX_LORA_RANK": "16",
        "ENABLE_AUTO_TOOL_CHOICE": "1",
        "TOOL_CALL_PARSER": "demo_tools",
        "GPU_PRICE_PER_SECOND": "0.0003",
        "TOOL_PARSER_PLUGIN": str(ROOT / "tests" / "plugins" / "tool_parser.py"),
    }
    options = "OPTIONS=--lost-as requeued"
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={folder}", options]
    with local_endpoint(command, environ, folder / "output") as endpoint:
        endpoint.wait_for_output(READY)
        yield endpoint
