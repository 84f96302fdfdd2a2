"""Which route a request is to."""

import pytest

from worker.job import OpenAIJob
from worker.routes.openai import find

MODEL = "/v1/llm/model-endpoints/{name:path}"


def job(route: str, method: str | None = None) -> OpenAIJob:
    return OpenAIJob.model_validate(
        {"openai_route": route, "openai_input": {"a": 1}, "method": method}
    )


@pytest.mark.parametrize(
    ("method", "route", "path"),
    [
        ("POST", "/v1/llm/model-endpoints/download", "/v1/llm/model-endpoints/download"),
        # A model may be called as a route is.
        ("DELETE", "/v1/llm/model-endpoints/download", MODEL),
        ("DELETE", "/v1/llm/model-endpoints/a", MODEL),
        (None, "/v1/chat/completions", "/v1/chat/completions"),
        ("GET", "/v1/files", "/v1/files"),
    ],
)
def test_a_route_is_found_by_its_path_and_method(method: str | None, route: str, path: str) -> None:
    found = find(job(route, method))
    assert found
    assert (found.path, found.method) == (path, method or "POST")


def test_what_no_route_has_is_not_found() -> None:
    assert find(job("/v1/nothing")) is None
