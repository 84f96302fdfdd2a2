"""Limits of the messages and tracebacks of records, in both formats."""

import json
import logging
import traceback
from itertools import pairwise

import pytest

from worker import logs

FORMATTERS = {"text": logs.TextFormatter(logs.TEXT_FORMAT), "json": logs.JsonFormatter()}
LINKS = ("__context__", "__cause__")


def raise_error(error: Exception) -> None:
    raise error


def recurse() -> None:
    recurse_again()


def recurse_again() -> None:
    recurse()


def make_chain(link: str, count: int, text: str = "") -> Exception:
    """Return the last of some errors of which each was raised by the one before it."""
    errors = [ValueError(f"{number}{text}") for number in range(count)]
    for earlier, later in pairwise(errors):
        setattr(later, link, earlier)
    return errors[-1]


def catch(error: Exception | None = None) -> Exception:
    """Raise an error, or one of a recursion, and return it."""
    try:
        raise_error(error) if error else recurse()
    except (ValueError, RecursionError, ExceptionGroup) as raised:
        return raised
    raise AssertionError


def format_error(log_format: str, error: Exception) -> str:
    """Return the traceback in the record of an error."""
    info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("worker", logging.ERROR, "", 1, "failed", (), info)
    text = FORMATTERS[log_format].format(record)
    return str(json.loads(text)["traceback"]) if log_format == "json" else text.split("\n", 1)[1]


# Errors as callers might cause them: one for each part of a path, a deep recursion, errors that
# quote the request.
HARMFUL: dict[str, Exception | None] = {
    **{link: make_chain(link, 20_000) for link in LINKS},
    "long messages": make_chain("__cause__", 9, "\n" * 100_000),
    "a recursion of two functions": None,
    "a long message": ValueError("200" * 2_000_000),
    "a group": ExceptionGroup("", [ValueError("a" * 5_000)] * 1_000),
}


@pytest.mark.parametrize("log_format", FORMATTERS)
@pytest.mark.parametrize("kind", HARMFUL)
def test_a_traceback_has_a_limited_length(kind: str, log_format: str) -> None:
    text = format_error(log_format, catch(HARMFUL[kind]))
    assert 500 < len(text) < 33_000
    assert "left out]\n" in text


@pytest.mark.parametrize("log_format", FORMATTERS)
@pytest.mark.parametrize("link", LINKS)
def test_of_a_long_chain_the_last_errors_are_formatted(link: str, log_format: str) -> None:
    text = format_error(log_format, catch(make_chain(link, 50)))
    assert text.splitlines()[0] == "[40 earlier errors are left out]"
    numbers = [line for line in text.splitlines() if line.startswith("ValueError: ")]
    assert numbers == [f"ValueError: {number}" for number in range(40, 50)]


@pytest.mark.parametrize("log_format", FORMATTERS)
@pytest.mark.parametrize("count", [1, 2, logs.MAX_CHAINED_ERRORS])
@pytest.mark.parametrize("link", LINKS)
def test_a_short_traceback_is_formatted_as_python_prints_it(
    link: str, count: int, log_format: str
) -> None:
    error = catch(make_chain(link, count))
    expected = "".join(traceback.format_exception(error)).removesuffix("\n")
    assert format_error(log_format, error) == expected


def test_errors_that_are_each_others_context_are_formatted() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert format_error("text", catch(second)).endswith("\nValueError: second")


@pytest.mark.parametrize("link", LINKS)
def test_formatting_a_long_chain_does_not_change_it(link: str) -> None:
    error = catch(make_chain(link, 50))
    expected = "".join(traceback.format_exception(error))
    format_error("text", error)
    assert "".join(traceback.format_exception(error)) == expected


@pytest.mark.parametrize("log_format", FORMATTERS)
def test_a_message_has_a_limited_length(log_format: str) -> None:
    arguments = ("first", "x" * 5_000_000, "last")
    record = logging.LogRecord("worker", logging.ERROR, "", 1, "%s%s%s", arguments, None)
    text = FORMATTERS[log_format].format(record)
    message = json.loads(text)["message"] if log_format == "json" else text
    assert 31_000 < len(text) < 33_000
    assert "first" in message[:100]
    assert "[4,968,009 characters are left out]" in message
    assert message.endswith("last")
