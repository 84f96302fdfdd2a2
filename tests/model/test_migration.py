"""The jobs of docs/migration.md on the real engine: verdicts, answers and messages."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from support import ROOT
from support.pages import check_table, shortened
from support.releases import of_the_pinned
from support.tables.migration import Verdict
from support.tables.migration.jobs import TABLES, Row, refused

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

PAGE = ROOT / "docs" / "migration.md"
# Of the first so many of a row's jobs: all yields.
Send = Callable[[Row, int | None], Awaitable[list[list[Any]]]]


@pytest.fixture
def send_job(demo_engine: "InProcessEngine", settings: Settings) -> Send:
    async def send(row: Row, count: int | None = None) -> list[list[Any]]:
        environ = {"MODEL_NAME": settings.model_name, "DEFAULT_BATCH_MAX_DELAY_MS": "0"}
        worker = Worker(Engines(demo_engine), Settings.from_env({**environ, **row.settings}))
        return [
            [chunk async for chunk in worker.handle({"id": "job-1", "input": job})]
            for job in row.jobs[:count]
        ]

    return send


@pytest.mark.parametrize(
    "row", [row for rows in TABLES.values() for row in rows], ids=lambda row: row.form
)
async def test_a_job_is_answered_as_the_page_says(row: Row, send_job: Send) -> None:
    for job, chunks in zip(row.jobs, await send_job(row, None), strict=True):
        message = refused(chunks)
        if row.verdict is Verdict.REFUSED:
            assert message, (job, chunks)
        else:
            assert message is None, (job, message)
            assert row.answers(chunks), (job, chunks)


@of_the_pinned
@pytest.mark.parametrize("head", TABLES)
async def test_the_pages_table_is_what_callers_learn(head: str, send_job: Send) -> None:
    async def cells(row: Row) -> tuple[str, ...]:
        if row.verdict is not Verdict.REFUSED:
            return row.form, row.verdict, row.differs
        (first,) = await send_job(row, 1)
        return row.form, row.verdict, shortened(refused(first) or "")

    columns = (head, "verdict", "what differs, or the message")
    check_table(PAGE, columns, [await cells(row) for row in TABLES[head]])
