"""What is not there, and pages that are none: for files, batches and fine-tunes alike."""

import json
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import CHAT

BATCHES, FILES = "/v1/batches", "/v1/files"
JOBS, FINE_TUNES = "/v1/fine_tuning/jobs", "/v1/llm/fine-tunes"
A = "a" * 24
BATCH, FILE, JOB = f"batch_{A}", f"file-{A}", f"ftjob-{A}"


def of_file(id: str) -> dict[str, Any]:
    return {"endpoint": CHAT, "input_file_id": id}


# unit/volume has the texts that are no ids.
@pytest.mark.parametrize(
    ("method", "route", "param"),
    [
        *(("GET", f"{BATCHES}/{id}", "batch_id") for id in (BATCH, "batch_%2e%2e", "a\0b")),
        ("POST", f"{BATCHES}/{BATCH}/cancel", "batch_id"),
        *(("GET", f"{FILES}/{id}", "id") for id in (FILE, "%2e%2e", "a%00b")),
        *(("GET", f"{FILES}/{FILE}/content", "id"), ("POST", f"{FILES}/{FILE}/delete", "id")),
        *(("GET", f"{JOBS}/{JOB}{end}", None) for end in ("", "/events", "/checkpoints")),
        *(("POST", f"{JOBS}/{JOB}/{end}", None) for end in ("cancel", "pause", "resume")),
        *(("GET", f"{FINE_TUNES}/ft-none{end}", None) for end in ("", "/events")),
        ("PUT", f"{FINE_TUNES}/ft-none/cancel", None),
    ],
)
async def test_an_object_that_is_not_there_is_404(
    caller: Caller, method: str, route: str, param: str | None
) -> None:
    error = await caller.refused(method, route)
    assert (error["code"], error["param"]) == (404, param or "fine_tuning_job_id")
    assert str(caller.root) not in json.dumps(error)


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        *(
            ({"route": BATCHES, "method": "POST", "body": of_file(id)}, "input_file_id")
            for id in ("", FILE, "file-../secret", "\ud800")
        ),
        ({"batch": of_file("file-../secret")}, "input_file_id"),
        ({"batch": {"id": "batch_../secret"}}, "batch_id"),
        ({"fine_tune": {"id": JOB}}, "fine_tuning_job_id"),
    ],
)
async def test_work_on_what_is_not_there_is_404(
    caller: Caller, payload: dict[str, Any], param: str
) -> None:
    error = await caller.refused_job(**payload)
    assert (error["code"], error["param"]) == (404, param)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        *((f"{BATCHES}?limit={limit}", 400) for limit in ("0", "101", "1.5", "many", "9" * 5_000)),
        *((f"{BATCHES}?after={after}", 404) for after in (BATCH, "%2e%2e%2fsecret", "%00")),
        *((f"{FILES}?limit={limit}", 400) for limit in ("0", "10001", "ten")),
        *((f"{FILES}?order=up", 400), (f"{FILES}?after=file-x", 404), (f"{JOBS}?limit=101", 400)),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_page_that_is_none_is_refused(caller: Caller, query: str, code: int) -> None:
    error = await caller.refused("GET", query)
    param = query.partition("?")[2].partition("=")[0]
    assert (error["code"], error["param"]) == (code, param)
