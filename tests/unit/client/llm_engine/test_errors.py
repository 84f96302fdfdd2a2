"""Which of LLM Engine's errors an answer is, by its status."""

import pytest

from llm_worker_client.llm_engine import errors

BODY = b'{"detail": "why", "error": {}}'


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequestError),
        (401, errors.UnauthorizedError),
        (404, errors.NotFoundError),
        (413, errors.BadRequestError),
        (429, errors.RateLimitExceededError),
        (500, errors.ServerError),
        (503, errors.ServerError),
        (302, errors.UnknownError),
        (600, errors.UnknownError),
    ],
)
def test_a_status_has_its_class(status: int, kind: type[Exception]) -> None:
    error = errors.error_in(status, BODY)
    assert type(error) is kind
    assert "why" in str(error)


def test_a_server_error_tells_its_status_as_scripts_look_for_it() -> None:
    error = errors.error_in(503, BODY)
    assert isinstance(error, errors.ServerError)
    assert error.status_code == 503
    assert str(error) == "status_code=503, message='why'"


@pytest.mark.parametrize("body", [b"<html>", b'"text"', b"{}", b"[]", b"\xff"])
def test_what_is_no_error_object_is_told_as_it_is(body: bytes) -> None:
    assert str(errors.error_in(404, body)) == body.decode(errors="replace")
