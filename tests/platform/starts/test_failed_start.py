"""A worker that can't start tells callers why, unless that may be its machine's fault."""

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.hub.downloads import hub_with
from support.hub.server import Hub, Repository
from support.processes.commands import HOME, SCRIPT
from support.processes.failed_starts import WAYS, FailedStart, Served, failed_serve, failed_start
from support.processes.forked import forked
from support.tables.failed_starts import FAULTS, MISTAKES, Row, place
from support.tables.planted_mistakes import SECRET

PAGE = ROOT / "docs" / "failed-starts.md"
# Set, the page is written with what the tests have seen.
WRITE = "WRITE_FAILED_STARTS"
# Tried in every run; the others are slow tests.
ALWAYS = ("no model is named", "memory for less than one context", "a broken GPU")
# Of the page's tables; what stands above them is written by hand.
COLUMNS = ["what was done", "named", *WAYS, "--serve", "s", "s, --serve", "jobs left"]
FAULTS_COLUMNS = ["what is broken", "jobs taken", "jobs left", "status"]


def line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"


def head(columns: Sequence[str]) -> str:
    return line(columns) + line("---" for _ in columns)


@dataclass(frozen=True)
class Seen:
    """What came of a row's two starts."""

    row: Row
    queue: FailedStart
    http: Served

    def problems(self, folder: Path) -> list[str]:
        """Return what is wrong with the answers of a start that is to be told."""
        answers = {**self.queue.told, "--serve": self.http.told}
        found = [f"{way}: no answer" for way in {*WAYS, "--serve"} if not answers.get(way)]
        for way, error in answers.items():
            text = str(error.get("message")) if error else ""
            found += [
                f"{way}: {name} is not named: {text}" for name in self.row.named if name not in text
            ]
            if SECRET in text or str(folder) in text or str(ROOT) in text:
                found.append(f"{way}: a secret or a path: {text}")
            if error and (error["code"], error["retryable"]) != (503, False):
                found.append(f"{way}: {error}")
        if (self.queue.left, self.queue.status) != (0, 1):
            found.append(f"{self.queue.left} jobs are left, status {self.queue.status}")
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    made = tmp_path_factory.mktemp("models")
    place(made)
    return made


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import vLLM once, before the first start, which would be told with its seconds."""
    with forked([SCRIPT, "--help"], HOME, tmp_path_factory.mktemp("import") / "log"):
        pass


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[Hub]:
    with hub_with(folder / "demo") as served:
        main = {"main": folder / "demo"}
        served.repositories["org/model"] = Repository(main)
        served.repositories["org/gated"] = Repository(main, gated=True)
        yield served


async def seen(row: Row, folder: Path, hub: Hub, base: Path) -> Seen:
    settings = {name: text.replace("<folder>", str(folder)) for name, text in row.settings.items()}
    if row.hub:
        settings |= {"HF_ENDPOINT": hub.endpoint, "BASE_PATH": str(base)}
    settings = {"SERVE_API_KEY": SECRET, **settings}
    logs = [base.with_name(f"{base.name}-{way}.log") for way in ("queue", "serve")]
    queue, http = await asyncio.gather(
        failed_start(settings, logs[0]), failed_serve(settings, logs[1])
    )
    return Seen(row, queue, http)


def some(rows: Sequence[Row]) -> list[Any]:
    """Return rows as parameters, most of which are slow: each takes two starts."""
    fast = [pytest.param(row, id=row.done) for row in rows if row.done in ALWAYS]
    slow = pytest.mark.slow
    others = [pytest.param(row, id=row.done, marks=slow) for row in rows if row.done not in ALWAYS]
    return [*fast, *others]


def write(cells: Sequence[object], columns: Sequence[str]) -> None:
    """Put a line into one of the page's tables, in place of the one with the same first cell."""
    if WRITE not in os.environ:
        return
    above, start, below = PAGE.read_text().partition(head(columns))
    lines, _, rest = below.partition("\n\n")
    kept = {one.split(" | ")[0]: one for one in lines.splitlines()}
    kept[f"| {cells[0]}"] = line(cells).rstrip()
    PAGE.write_text(above + start + "\n".join(kept.values()) + "\n" + (rest and f"\n{rest}"))


@pytest.mark.parametrize("row", some(MISTAKES))
async def test_every_job_that_waits_fails_with_the_reason_and_the_worker_exits(
    row: Row, folder: Path, hub: Hub, tmp_path: Path
) -> None:
    found = await seen(row, folder, hub, tmp_path / "base")
    problems = found.problems(folder)
    write(cells_of(found, problems), COLUMNS)
    assert not problems, found.queue.log


@pytest.mark.parametrize("row", some(FAULTS))
async def test_a_machines_fault_takes_no_job(
    row: Row, folder: Path, hub: Hub, tmp_path: Path
) -> None:
    found = await seen(row, folder, hub, tmp_path / "base")
    queue = found.queue
    write([row.done, queue.taken, queue.left, queue.status], FAULTS_COLUMNS)
    assert (queue.taken, queue.left, queue.told) == (0, len(WAYS), {}), queue.log
    assert (queue.status, found.http.told) == (1, None)


def test_the_page_has_every_row() -> None:
    page = PAGE.read_text()
    assert all(f"| {row.done} |" in page for row in (*MISTAKES, *FAULTS))


async def test_turned_off_a_failed_start_takes_no_job(tmp_path: Path) -> None:
    failed = await failed_start({"ANSWER_FAILED_START": "no"}, tmp_path / "log")
    assert (failed.told, failed.taken, failed.left) == ({}, 0, len(WAYS))
    assert failed.status == 1


def cells_of(found: Seen, wrong: Sequence[str]) -> list[object]:
    bad = {problem.partition(":")[0] for problem in wrong}
    ways = ["✗" if way in bad else "✓" for way in (*WAYS, "--serve")]
    names = ", ".join(f"`{name}`" for name in found.row.named)
    seconds = [f"{found.queue.seconds:.1f}", f"{found.http.seconds:.1f}"]
    return [found.row.done, names, *ways, *seconds, found.queue.left]
