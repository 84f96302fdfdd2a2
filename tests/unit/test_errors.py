"""The error tree and what a caller sees of it."""

import pytest

from worker.errors import (
    AnswerTooLarge,
    EngineBusy,
    EngineDead,
    InternalError,
    InvalidInput,
    RefusedByEngine,
    ShuttingDown,
    UnknownRoute,
    WorkerError,
)
from worker.settings.mistakes import Mistake, SettingsError, collected


@pytest.mark.parametrize(
    ("error", "status", "type_"),
    [
        (InvalidInput("no"), 400, "BadRequestError"),
        (UnknownRoute("no"), 404, "NotFoundError"),
        (AnswerTooLarge("no"), 413, "RequestEntityTooLargeError"),
        (InternalError(), 500, "InternalServerError"),
        (EngineBusy("no"), 503, "ServiceUnavailableError"),
        (EngineDead(), 503, "ServiceUnavailableError"),
        (ShuttingDown(), 503, "ServiceUnavailableError"),
        (RefusedByEngine("no", status=422), 422, "UnprocessableEntityError"),
        (RefusedByEngine("no", status=429), 429, "TooManyRequestsError"),
    ],
)
def test_the_type_of_an_error_is_its_status_in_words(
    error: WorkerError, status: int, type_: str
) -> None:
    assert (error.status, error.type) == (status, type_)


def test_a_body_has_openais_keys_and_the_workers_two() -> None:
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


def test_a_body_quotes_no_more_than_2000_characters() -> None:
    body = InvalidInput("m" * 5000, param="p" * 5000).body()["error"]
    assert (len(body["message"]), len(body["param"])) == (2000, 2000)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (EngineDead(), True),
        (ShuttingDown(), True),
        (EngineBusy("full"), True),
        (RefusedByEngine("full", status=503), True),
        (RefusedByEngine("too many", status=429), True),
        (RefusedByEngine("wrong", status=400), False),
        (RefusedByEngine("broken", status=500), False),
        (InternalError(), False),
        (InvalidInput("wrong"), False),
    ],
)
def test_only_errors_that_may_pass_are_retryable(error: WorkerError, retryable: bool) -> None:
    assert error.body()["error"]["retryable"] is retryable


def test_a_mistake_names_the_setting_and_its_value_and_what_is_accepted() -> None:
    assert str(Mistake("PORTS", "x", "a number")) == "PORTS = 'x': a number"


def test_a_missing_setting_is_reported_as_not_set() -> None:
    assert str(Mistake("MODEL_NAME", None, "it is required")) == (
        "MODEL_NAME is not set: it is required"
    )


def test_several_mistakes_are_one_message_sorted_by_name() -> None:
    error = SettingsError([Mistake("B", "2", "b"), Mistake("A", "1", "a")])
    assert error.message == (
        "2 settings are wrong, so the worker does not start:\n  A = '1': a\n  B = '2': b"
    )


def test_a_message_about_a_single_mistake_is_in_the_singular() -> None:
    assert SettingsError([Mistake("A", "1", "a")]).message.startswith("1 setting is wrong")


def test_mistakes_of_several_blocks_are_collected() -> None:
    mistakes: list[Mistake] = []
    for name in ("A", "B"):
        with collected(mistakes):
            raise SettingsError([Mistake(name, "x", "no")])
    assert [mistake.name for mistake in mistakes] == ["A", "B"]


def test_other_errors_than_mistakes_are_not_collected() -> None:
    with pytest.raises(InvalidInput), collected([]):
        raise InvalidInput("not a setting")
