"""The jobs of docs/migration.md on the real engine: verdicts, answers and messages."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import ROOT
from support.pages import hold, shortened
from support.releases import of_the_pinned
from support.tables.migration import Verdict
from support.tables.migration.jobs import TABLES, Job, Row, refused

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

PAGE = ROOT / "docs" / "migration.md"
# Of a row: the yields of each of its jobs.
Send = Callable[[Row], Awaitable[list[list[Any]]]]


@pytest.fixture
def send(engine: "InProcessEngine", demo_model: Path) -> Send:
    async def send(row: Row) -> list[list[Any]]:
        environ = {
            "MODEL_NAME": str(demo_model),
            "DEFAULT_BATCH_MAX_DELAY_MS": "0",
            **dict(row.settings),
        }
        worker = Worker(Engines(engine), Settings.from_env(environ))

        async def one(job: Job) -> list[Any]:
            return [chunk async for chunk in worker.handle({"id": "job-1", "input": job})]

        return [await one(job) for job in row.jobs]

    return send


@pytest.mark.parametrize(
    "row", [row for rows in TABLES.values() for row in rows], ids=lambda r: r.form
)
async def test_a_job_is_answered_as_the_page_says(row: Row, send: Send) -> None:
    for job, chunks in zip(row.jobs, await send(row), strict=True):
        message = refused(chunks)
        if row.verdict is Verdict.REFUSED:
            assert message, (job, chunks)
        else:
            assert message is None, (job, message)
            assert row.answers(chunks), (job, chunks)


@of_the_pinned
@pytest.mark.parametrize("head", TABLES)
async def test_the_pages_table_is_what_callers_learn(head: str, send: Send) -> None:
    async def cells(row: Row) -> tuple[str, ...]:
        if row.verdict is not Verdict.REFUSED:
            return row.form, row.verdict, row.differs
        first, *_ = await send(row._replace(jobs=row.jobs[:1]))
        return row.form, row.verdict, shortened(refused(first) or "")

    columns = (head, "verdict", "what differs, or the message")
    hold(PAGE, columns, [await cells(row) for row in TABLES[head]])
