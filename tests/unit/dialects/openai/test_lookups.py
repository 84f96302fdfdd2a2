"""Unknown objects and invalid pages, for files, batches and fine-tunes."""

import json
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import CHAT

BATCHES, FILES = "/v1/batches", "/v1/files"
JOBS, FINE_TUNES = "/v1/fine_tuning/jobs", "/v1/llm/fine-tunes"
A = "a" * 24
BATCH, FILE, JOB = f"batch_{A}", f"file-{A}", f"ftjob-{A}"


def batch_of_file(id: str) -> dict[str, Any]:
    return {"endpoint": CHAT, "input_file_id": id}


# tests/unit/volume covers strings that are no ids.
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
async def test_an_unknown_object_is_404(
    caller: Caller, method: str, route: str, param: str | None
) -> None:
    error = await caller.request_error(method, route)
    assert (error["code"], error["param"]) == (404, param or "fine_tuning_job_id")
    assert str(caller.root) not in json.dumps(error)


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        *(
            ({"route": BATCHES, "method": "POST", "body": batch_of_file(id)}, "input_file_id")
            for id in ("", FILE, "file-../secret", "\ud800")
        ),
        ({"batch": batch_of_file("file-../secret")}, "input_file_id"),
        ({"batch": {"id": "batch_../secret"}}, "batch_id"),
        ({"fine_tune": {"id": JOB}}, "fine_tuning_job_id"),
    ],
)
async def test_a_job_for_an_unknown_object_is_404(
    caller: Caller, payload: dict[str, Any], param: str
) -> None:
    error = await caller.job_error(**payload)
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
async def test_an_invalid_page_is_refused(caller: Caller, query: str, code: int) -> None:
    error = await caller.request_error("GET", query)
    param = query.partition("?")[2].partition("=")[0]
    assert (error["code"], error["param"]) == (code, param)
