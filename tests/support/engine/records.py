"""Records of jobs that a scripted engine answers, and their lines in the log."""

from typing import Any

import pytest

from support.engine.scripted import ScriptedEngine, worker
from worker.record import JobRecord

ID = "job-1"


def record_fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of all records that were logged so far."""
    return [vars(entry)["fields"] for entry in caplog.records if entry.name == "worker.record"]


async def record_of(engine: ScriptedEngine, payload: Any, **environ: str) -> JobRecord:
    record = JobRecord(ID)
    async for _ in worker(engine, **environ).handle({"id": ID, "input": payload}, record):
        pass
    return record
