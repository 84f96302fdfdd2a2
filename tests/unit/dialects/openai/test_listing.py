"""Lists of files, batches and fine-tunes: their pages; unknown objects."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import CHAT

from worker.dialects.openai.listing import make_list_object
from worker.volume.pages import MAX_BYTES, paginate

BATCHES, FILES = "/v1/batches", "/v1/files"
JOBS, FINE_TUNES = "/v1/fine_tuning/jobs", "/v1/llm/fine-tunes"
A = "a" * 24
BATCH, FILE, JOB = f"batch_{A}", f"file-{A}", f"ftjob-{A}"


@dataclass(frozen=True)
class ListedObject:
    """An object of a list."""

    id: str
    created_at: int


def make_objects(count: int) -> list[ListedObject]:
    return [ListedObject(f"{number}", number) for number in range(count)]


def test_a_page_ends_before_it_is_too_large_for_a_response() -> None:
    """Large objects of one caller must not make the lists of all callers too large for a job."""

    def describe(item: ListedObject) -> dict[str, Any]:
        return {"id": item.id, "metadata": "a" * (MAX_BYTES // 3)}

    pages = [
        make_list_object(paginate(make_objects(5), after=after), describe) for after in (None, "1")
    ]
    ids = [[item["id"] for item in page["data"]] for page in pages]
    assert (ids, [page["has_more"] for page in pages]) == ([["4", "3"], ["0"]], [True, False])
    assert (pages[0]["first_id"], pages[0]["last_id"]) == ("4", "3")


def test_a_page_has_openais_shape() -> None:
    def make_page(count: int, **query: Any) -> dict[str, Any]:
        page = paginate(make_objects(count), **query)
        return make_list_object(page, lambda item: {"id": item.id})

    data = [{"id": "3"}, {"id": "2"}]
    expected = {"object": "list", "data": data, "first_id": "3", "last_id": "2", "has_more": True}
    assert make_page(4, limit=2) == expected
    empty: dict[str, Any] = {"data": [], "first_id": None, "last_id": None, "has_more": False}
    assert make_page(0) == make_page(4, after="0") == {"object": "list", **empty}


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
