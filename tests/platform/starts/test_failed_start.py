"""Tests that a worker that can't start reports the reason, unless its machine is faulty."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.hub.downloads import hub_with
from support.hub.server import Hub, Repository
from support.pages import table_row
from support.processes.background import BackgroundProcess, start_command, wait_until
from support.processes.commands import HOME, SCRIPT
from support.processes.failed_starts import (
    WAYS,
    FailedStart,
    start_failing_server,
    start_failing_worker,
)
from support.tables.failed_starts import FAULTS, MISTAKES, FailedStartRow, write_models
from support.tables.planted_mistakes import SECRET

PAGE = ROOT / "docs" / "failed-starts.md"
# If this variable is set, the results of the tests are written to the page.
WRITE = "WRITE_FAILED_STARTS"
# Rows that are tested in every run; the others are slow tests.
ALWAYS = ("no model is set", "a broken GPU")
# The error of --serve or None, and the seconds until the response.
Serve = tuple[dict[str, Any] | None, float]
# Columns of the page's tables. The text above the tables is written by hand.
COLUMNS = ["mistake", "named", *WAYS, "--serve", "s", "s, --serve", "jobs left"]
FAULTS_COLUMNS = ["fault", "jobs taken", "jobs left", "status"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    made = tmp_path_factory.mktemp("models")
    write_models(made)
    return made


@pytest.fixture(scope="module", autouse=True)
def _import_vllm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import vLLM once, so that the time of the first startup does not include the import."""
    with start_command([SCRIPT, "--help"], HOME, tmp_path_factory.mktemp("import") / "log"):
        pass


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[Hub]:
    with hub_with(folder / "demo") as running:
        main = {"main": folder / "demo"}
        running.repositories["org/model"] = Repository(main)
        running.repositories["org/gated"] = Repository(main, gated=True)
        yield running


async def start_both(
    row: FailedStartRow, folder: Path, hub: Hub, base: Path
) -> tuple[FailedStart, Serve]:
    """Start a worker of the queue and a worker that serves HTTP."""
    settings = {name: text.replace("<folder>", str(folder)) for name, text in row.settings.items()}
    if row.hub:
        settings |= {"HF_ENDPOINT": hub.endpoint, "BASE_PATH": str(base)}
    settings = {"SERVE_API_KEY": SECRET, **settings}
    logs = [base.with_name(f"{base.name}-{way}.log") for way in ("queue", "serve")]
    queue, http = await asyncio.gather(
        start_failing_worker(settings, logs[0]), start_failing_server(settings, logs[1])
    )
    return queue, http


def find_problems(
    row: FailedStartRow, queue: FailedStart, http: Serve, folder: Path
) -> dict[str, list[str]]:
    """Return the problems of each way's error response to a mistake of the operator."""
    found = {}
    for way, error in {**queue.errors, "--serve": http[0]}.items():
        text = str(error.get("message")) if error else ""
        wrong = [f"{name} is not named" for name in row.named_settings if name not in text]
        if SECRET in text or str(folder) in text or str(ROOT) in text:
            wrong.append("a secret or a path")
        if error is None or (error["code"], error["retryable"]) != (503, False):
            wrong.append("no failure for good")
        if wrong:
            found[way] = [*wrong, str(error)]
    return found


def create_params(rows: Sequence[FailedStartRow]) -> list[Any]:
    """Return rows as test parameters; most of them are slow tests with two startups each."""
    return [
        pytest.param(row, id=row.mistake, marks=[] if row.mistake in ALWAYS else pytest.mark.slow)
        for row in rows
    ]


def write_row(cells: Sequence[object], columns: Sequence[str]) -> None:
    """Write a row into one of the page's tables, replacing the row with the same first cell."""
    if WRITE not in os.environ:
        return
    head = table_row(columns) + table_row("---" for _ in columns)
    above, start, below = PAGE.read_text().partition(head)
    lines, _, rest = below.partition("\n\n")
    rows = {one.split(" | ")[0]: one for one in lines.splitlines()}
    rows[f"| {cells[0]}"] = table_row(cells).rstrip()
    PAGE.write_text(above + start + "\n".join(rows.values()) + "\n" + (rest and f"\n{rest}"))


@pytest.mark.parametrize("row", create_params(MISTAKES))
async def test_every_queued_job_fails_with_the_reason_and_the_worker_exits(
    row: FailedStartRow, folder: Path, hub: Hub, tmp_path: Path
) -> None:
    queue, http = await start_both(row, folder, hub, tmp_path / "base")
    wrong = find_problems(row, queue, http, folder)
    names = ", ".join(f"`{name}`" for name in row.named_settings)
    ways = ["✗" if way in wrong else "✓" for way in (*WAYS, "--serve")]
    seconds = [f"{queue.seconds:.1f}", f"{http[1]:.1f}"]
    write_row([row.mistake, names, *ways, *seconds, queue.jobs_left], COLUMNS)
    assert wrong == {}, queue.log
    assert queue.errors.keys() == WAYS.keys()
    assert (queue.jobs_left, queue.exit_status) == (0, 1)


async def test_a_core_that_is_killed_from_outside_during_a_start_fails_no_job(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    def kill_core(worker: BackgroundProcess) -> None:
        wait_until(worker.core_pids)
        os.kill(worker.core_pids()[0], signal.SIGKILL)

    queue = await start_failing_worker(worker_environ, tmp_path / "log", kill_core)
    assert (queue.jobs_taken, queue.jobs_left, queue.errors) == (0, len(WAYS), {}), queue.log
    assert queue.exit_status == 1


@pytest.mark.parametrize("row", create_params(FAULTS))
async def test_a_worker_on_a_faulty_machine_takes_no_job(
    row: FailedStartRow, folder: Path, hub: Hub, tmp_path: Path
) -> None:
    queue, http = await start_both(row, folder, hub, tmp_path / "base")
    write_row([row.mistake, queue.jobs_taken, queue.jobs_left, queue.exit_status], FAULTS_COLUMNS)
    assert (queue.jobs_taken, queue.jobs_left, queue.errors) == (0, len(WAYS), {}), queue.log
    assert (queue.exit_status, http[0]) == (1, None)
