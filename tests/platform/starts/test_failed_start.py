"""A worker that can't start says why to callers, unless that may be its machine's fault."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.hub.downloads import hub_with
from support.hub.server import Hub, Repository
from support.pages import line
from support.processes.background import background
from support.processes.commands import HOME, SCRIPT
from support.processes.failed_starts import WAYS, FailedStart, failed_serve, failed_start
from support.tables.failed_starts import FAULTS, MISTAKES, Row, place
from support.tables.planted_mistakes import SECRET

PAGE = ROOT / "docs" / "failed-starts.md"
# Set, the page is written with what the tests have seen.
WRITE = "WRITE_FAILED_STARTS"
# Tried in every run; the others are slow tests.
ALWAYS = ("no model is named", "a broken GPU")
# The error of --serve, if any, and the seconds until it was there.
Serve = tuple[dict[str, Any] | None, float]
# Of the page's tables; what stands above them is written by hand.
COLUMNS = ["what was done", "named", *WAYS, "--serve", "s", "s, --serve", "jobs left"]
FAULTS_COLUMNS = ["what is broken", "jobs taken", "jobs left", "status"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    made = tmp_path_factory.mktemp("models")
    place(made)
    return made


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import vLLM once, before the first start, whose seconds would have it."""
    with background([SCRIPT, "--help"], HOME, tmp_path_factory.mktemp("import") / "log"):
        pass


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[Hub]:
    with hub_with(folder / "demo") as running:
        main = {"main": folder / "demo"}
        running.repositories["org/model"] = Repository(main)
        running.repositories["org/gated"] = Repository(main, gated=True)
        yield running


async def tried(row: Row, folder: Path, hub: Hub, base: Path) -> tuple[FailedStart, Serve]:
    """Start a worker of the queue, and one that serves HTTP."""
    settings = {name: text.replace("<folder>", str(folder)) for name, text in row.settings.items()}
    if row.hub:
        settings |= {"HF_ENDPOINT": hub.endpoint, "BASE_PATH": str(base)}
    settings = {"SERVE_API_KEY": SECRET, **settings}
    logs = [base.with_name(f"{base.name}-{way}.log") for way in ("queue", "serve")]
    queue, http = await asyncio.gather(
        failed_start(settings, logs[0]), failed_serve(settings, logs[1])
    )
    return queue, http


def problems(row: Row, queue: FailedStart, http: Serve, folder: Path) -> dict[str, list[str]]:
    """Return what is wrong with each way's answer to a start that is a caller's to know."""
    found = {}
    for way, error in {**queue.errors, "--serve": http[0]}.items():
        text = str(error.get("message")) if error else ""
        wrong = [f"{name} is not named" for name in row.named if name not in text]
        if SECRET in text or str(folder) in text or str(ROOT) in text:
            wrong.append("a secret or a path")
        if error is None or (error["code"], error["retryable"]) != (503, False):
            wrong.append("no failure for good")
        if wrong:
            found[way] = [*wrong, str(error)]
    return found


def some(rows: Sequence[Row]) -> list[Any]:
    """Return rows as parameters, most of which are slow: each takes two starts."""
    return [
        pytest.param(row, id=row.done, marks=[] if row.done in ALWAYS else pytest.mark.slow)
        for row in rows
    ]


def write(cells: Sequence[object], columns: Sequence[str]) -> None:
    """Put a line into one of the page's tables, in place of the one with the same first cell."""
    if WRITE not in os.environ:
        return
    head = line(columns) + line("---" for _ in columns)
    above, start, below = PAGE.read_text().partition(head)
    lines, _, rest = below.partition("\n\n")
    rows = {one.split(" | ")[0]: one for one in lines.splitlines()}
    rows[f"| {cells[0]}"] = line(cells).rstrip()
    PAGE.write_text(above + start + "\n".join(rows.values()) + "\n" + (rest and f"\n{rest}"))


@pytest.mark.parametrize("row", some(MISTAKES))
async def test_every_job_that_waits_fails_with_the_reason_and_the_worker_exits(
    row: Row, folder: Path, hub: Hub, tmp_path: Path
) -> None:
    queue, http = await tried(row, folder, hub, tmp_path / "base")
    wrong = problems(row, queue, http, folder)
    names = ", ".join(f"`{name}`" for name in row.named)
    ways = ["✗" if way in wrong else "✓" for way in (*WAYS, "--serve")]
    seconds = [f"{queue.seconds:.1f}", f"{http[1]:.1f}"]
    write([row.done, names, *ways, *seconds, queue.left], COLUMNS)
    assert wrong == {}, queue.log
    assert queue.errors.keys() == WAYS.keys()
    assert (queue.left, queue.status) == (0, 1)


@pytest.mark.parametrize("row", some(FAULTS))
async def test_a_machines_fault_takes_no_job(
    row: Row, folder: Path, hub: Hub, tmp_path: Path
) -> None:
    queue, http = await tried(row, folder, hub, tmp_path / "base")
    write([row.done, queue.taken, queue.left, queue.status], FAULTS_COLUMNS)
    assert (queue.taken, queue.left, queue.errors) == (0, len(WAYS), {}), queue.log
    assert (queue.status, http[0]) == (1, None)
