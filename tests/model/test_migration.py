"""Tests that jobs on the real engine have the verdicts and messages of docs/migration.md."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from support import ROOT
from support.pages import check_table, shorten
from support.releases import needs_pinned_vllm
from support.tables.migration import Verdict
from support.tables.migration.jobs import TABLES, JobForm, error_message

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

PAGE = ROOT / "docs" / "migration.md"
# Returns all chunks of a row's first jobs, up to a number of jobs.
Send = Callable[[JobForm, int | None], Awaitable[list[list[Any]]]]


@pytest.fixture
def send_job(demo_engine: "InProcessEngine", settings: Settings) -> Send:
    async def send(row: JobForm, count: int | None = None) -> list[list[Any]]:
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
async def test_a_job_has_the_verdict_of_the_page(row: JobForm, send_job: Send) -> None:
    for job, chunks in zip(row.jobs, await send_job(row, None), strict=True):
        message = error_message(chunks)
        if row.verdict is Verdict.REFUSED:
            assert message, (job, chunks)
        else:
            assert message is None, (job, message)
            assert row.answers(chunks), (job, chunks)


@needs_pinned_vllm
@pytest.mark.parametrize("head", TABLES)
async def test_the_table_of_the_page_matches_the_responses_to_callers(
    head: str, send_job: Send
) -> None:
    async def cells(row: JobForm) -> tuple[str, ...]:
        if row.verdict is Verdict.DIFFERS:
            return row.form, row.verdict, row.differs
        (first,) = await send_job(row, 1)
        return row.form, row.verdict, shorten(error_message(first) or "")

    works = "; ".join(row.form for row in TABLES[head] if row.verdict is Verdict.WORKS)
    others = [await cells(row) for row in TABLES[head] if row.verdict is not Verdict.WORKS]
    columns = (head, "verdict", "difference, or message")
    check_table(PAGE, columns, [(works, Verdict.WORKS, ""), *others])
