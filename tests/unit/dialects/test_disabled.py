"""Routes and jobs that DISABLED_ROUTES disables, by each way in."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.batches import batch_request, line, results, to_jsonl
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine, failure
from support.fine_tunes import scripted_fine_tune

from worker.dialects.table import ROUTES
from worker.routes.kinds import KINDS
from worker.settings.routes import (
    JOB_KINDS,
    LONG_WORK,
    OPTIONAL_ROUTES,
    REQUIRED_ROUTES,
    ROUTES_BY_GROUP,
)

JOBS: dict[str, list[dict[str, Any]]] = {
    "batches": [{"batch": batch_request(1)}, {"batch": {"id": "batch_" + "a" * 24}}],
    "fine-tunes": [
        {"fine_tune": {"model": "demo", "training_file": "file-a"}},
        {"fine_tune": {"id": "ftjob-" + "a" * 24}},
    ],
}


def spellings(path: str) -> Iterator[str]:
    """Yield a path as callers may write it."""
    yield from (path, path.removeprefix("/v1"), path.lstrip("/"), f"/v1{path}", f"{path}/")
    yield from (f"{path}?limit=1", path.replace("i", "%69"))


def requests_for(names: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield the inputs of jobs with a request to each of some routes, in every form."""
    for route in ROUTES:
        if route.name not in names:
            continue
        has_body = route.method in {"POST", "PUT"}
        for path in spellings(re.sub(r"{.+?}", "a", route.path)):
            yield {"route": path, "method": route.method, "body": {"a": 1} if has_body else None}
            if route.method == "GET":
                yield {"openai_route": path}
            if route.method == "POST":
                yield {"openai_route": path, "openai_input": {"a": 1}}


def requests_of_group(group: str) -> list[dict[str, Any]]:
    return [*requests_for(ROUTES_BY_GROUP[group]), *JOBS.get(group, [])]


def files_in(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


def is_disabled(yields: list[Any]) -> bool:
    """Return whether a job has failed because of DISABLED_ROUTES."""
    if list(yields[0]) != ["error"]:
        return False
    error = failure(yields)
    assert ("DISABLED_ROUTES" not in error["message"]) or error["code"] == 404
    return "DISABLED_ROUTES" in error["message"]


def test_every_route_and_every_kind_of_job_has_a_name() -> None:
    assert {route.name for route in ROUTES} == OPTIONAL_ROUTES | REQUIRED_ROUTES
    assert {*JOB_KINDS.values()} == KINDS.keys()


@pytest.mark.parametrize("group", ROUTES_BY_GROUP)
async def test_a_group_is_disabled_by_every_way_in_and_no_other_group_is(
    engine: ScriptedEngine, tmp_path: Path, group: str
) -> None:
    for setting in (LONG_WORK, group):
        caller = Caller(engine, tmp_path, DISABLED_ROUTES=setting)
        for payload in requests_of_group(group):
            assert is_disabled(await caller.yields(payload)), payload
    assert (files_in(tmp_path), engine.requests, caller.started_work) == ([], [], [])
    others = (requests_of_group(other) for other in ROUTES_BY_GROUP if other != group)
    for payload in (request for requests in others for request in requests):
        assert not is_disabled(await caller.yields(payload)), payload


@pytest.mark.parametrize("name", sorted(OPTIONAL_ROUTES))
async def test_each_route_can_be_disabled(
    engine: ScriptedEngine, tmp_path: Path, name: str
) -> None:
    method, path = name.split()
    for setting in (path.removeprefix("/v1"), f"{method.lower()} {path}"):
        caller = Caller(engine, tmp_path, DISABLED_ROUTES=setting)
        payload = next(requests_for(frozenset({name})))
        assert is_disabled(await caller.yields(payload)), setting


async def test_a_route_is_disabled_with_one_of_its_methods(caller: Caller) -> None:
    caller = Caller(caller.engine, caller.root, DISABLED_ROUTES="POST /v1/files")
    assert (await caller.get("/v1/files"))["data"] == []
    error = await caller.request_error("POST", "/v1/files", purpose="batch", content="a")
    assert (error["code"], error["message"]) == (
        404,
        "There is no route '/v1/files': DISABLED_ROUTES disables it.",
    )
    error = await caller.request_error("DELETE", "/v1/files")
    assert (error["code"], error["message"]) == (405, "/v1/files takes GET.")


def names_in(document: dict[str, Any]) -> set[str]:
    """Return the names of the routes in an OpenAPI document."""
    paths = document["paths"].items()
    return {f"{method.upper()} {path}" for path, item in paths for method in item}


@pytest.mark.parametrize("name", ["files", LONG_WORK, "/metrics", "POST /v1/files"])
async def test_the_openapi_document_omits_disabled_routes(caller: Caller, name: str) -> None:
    document = await caller.get("/openapi.json")
    caller = Caller(caller.engine, caller.root, DISABLED_ROUTES=name)
    left = await caller.get("/openapi.json")

    assert names_in(document) - names_in(left) == caller.settings.disabled - KINDS.keys()
    assert names_in(left) < names_in(document)


async def test_a_batch_of_a_disabled_route_is_refused(caller: Caller) -> None:
    caller = Caller(caller.engine, caller.root, DISABLED_ROUTES=CHAT)
    file = await caller.post("/v1/files", purpose="batch", content="{}")
    before = files_in(caller.root)
    body = {"input_file_id": file["id"], "endpoint": CHAT}
    errors = [
        await caller.request_error("POST", "/v1/batches", **body),
        failure(await caller.yields({"batch": batch_request(1)})),
    ]
    for error in errors:
        assert (error["code"], error["param"]) == (400, "endpoint")
        assert error["message"] == "endpoint: DISABLED_ROUTES disables this route"
    assert (files_in(caller.root), caller.started_work) == (before, [])


async def test_lines_fail_if_their_route_was_disabled_after_the_batch_was_created(
    caller: Caller,
) -> None:
    file = await caller.post("/v1/files", purpose="batch", content=to_jsonl([line("a")]).decode())
    batch = await caller.post("/v1/batches", input_file_id=file["id"], endpoint=CHAT)
    caller = Caller(caller.engine, caller.root, DISABLED_ROUTES=CHAT)
    batch = (await caller.run_job(batch={"id": batch["id"]}))["batch"]
    output, errors = results(caller.root, batch)
    response = errors["a"]["response"]
    assert (output, response["status_code"]) == ({}, 404)
    assert "DISABLED_ROUTES" in response["body"]["error"]["message"]
    assert caller.engine.requests == []


@pytest.mark.parametrize(
    ("disabled", "kinds"),
    [
        ("/metrics", ["batch", "fine_tune"]),
        ("files", ["batch", "fine_tune"]),
        ("batches", ["fine_tune"]),
        ("fine-tunes", ["batch"]),
        ("long-work", []),
    ],
)
async def test_unfinished_work_of_a_disabled_kind_stays_and_is_not_continued(
    caller: Caller, disabled: str, kinds: list[str]
) -> None:
    caller = Caller(caller.engine, caller.root)
    scripted_fine_tune(caller.root)
    file = await caller.post("/v1/files", purpose="batch", content="{}")
    await caller.post("/v1/batches", input_file_id=file["id"], endpoint=CHAT)
    unfinished = caller.worker.list_unfinished_work()
    before = files_in(caller.root)
    worker = Caller(caller.engine, caller.root, DISABLED_ROUTES=disabled).worker
    assert [work.kind for work in worker.list_unfinished_work()] == kinds
    assert len(unfinished) == len(KINDS)
    assert caller.worker.list_unfinished_work() == unfinished
    assert files_in(caller.root) == before
