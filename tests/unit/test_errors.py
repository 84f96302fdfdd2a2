"""The hierarchy of errors, and the bodies that callers receive."""

import pytest

from worker.errors import (
    EngineDead,
    InternalError,
    InvalidInput,
    OnOtherVolume,
    RefusedByEngine,
    UnknownRoute,
    WorkerError,
)
from worker.settings.mistakes import Mistake, SettingsError, collect_mistakes


@pytest.mark.parametrize(
    ("error", "status", "type_", "retryable"),
    [
        (InvalidInput("no"), 400, "BadRequestError", False),
        (UnknownRoute("no"), 404, "NotFoundError", False),
        (InternalError(), 500, "InternalServerError", False),
        (EngineDead(), 503, "ServiceUnavailableError", True),
        (OnOtherVolume("file a", "b", "c"), 503, "ServiceUnavailableError", True),
        (RefusedByEngine("no", status=422), 422, "UnprocessableEntityError", False),
        (RefusedByEngine("no", status=429), 429, "TooManyRequestsError", True),
    ],
)
def test_the_type_names_the_status_and_temporary_errors_are_retryable(
    error: WorkerError, status: int, type_: str, retryable: bool
) -> None:
    assert (error.status, error.type) == (status, type_)
    assert error.body()["error"]["retryable"] is retryable


def test_a_body_has_the_keys_of_openai_and_two_of_the_worker() -> None:
    assert InvalidInput("wrong", param="prompt").body("job-1") == {
        "error": {
            "message": "wrong",
            "type": "BadRequestError",
            "param": "prompt",
            "code": 400,
            "retryable": False,
            "request_id": "job-1",
        }
    }


def test_message_and_param_of_a_body_have_at_most_2000_characters() -> None:
    body = InvalidInput("m" * 5000, param="p" * 5000).body()["error"]
    assert (len(body["message"]), len(body["param"])) == (2000, 2000)


ONE, TWO = Mistake("A", "1", "a number"), Mistake("B", None, "it is required")


def test_all_mistakes_are_one_message_sorted_by_name() -> None:
    one = "1 setting is wrong, so the worker does not start:\n  A = '1': a number"
    assert SettingsError([ONE]).message == one
    assert SettingsError([TWO, ONE]).message == (
        "2 settings are wrong, so the worker does not start:\n"
        "  A = '1': a number\n  B is not set: it is required"
    )


def test_mistakes_of_several_blocks_are_collected_and_other_errors_are_raised() -> None:
    mistakes: list[Mistake] = []
    for mistake in (ONE, TWO):
        with collect_mistakes(mistakes):
            raise SettingsError([mistake])
    assert mistakes == [ONE, TWO]
    with pytest.raises(InvalidInput), collect_mistakes([]):
        raise InvalidInput("not a setting")
