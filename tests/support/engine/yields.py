"""Parses the yields of a job: errors, and events and texts of OpenAI streams."""

import json
from collections.abc import Iterable
from typing import Any


def split_stream_error(yields: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the yields of an OpenAI stream that broke off, and the error of its job."""
    return yields[:-1], failure(yields[-1:])


def failure(yields: list[Any]) -> dict[str, Any]:
    """Return the error of a failed job, which must be the only key of its last yield."""
    assert yields, "the job yielded nothing"
    assert list(yields[-1]) == ["error"]
    assert not any("error" in chunk for chunk in yields[:-1] if isinstance(chunk, dict))
    error: dict[str, Any] = json.loads(yields[-1]["error"])["error"]
    return error


def events_in(text: str) -> list[Any]:
    """Return the decoded data of an SSE text, which must consist of whole events."""
    assert text.endswith("\n\n"), f"not whole events: {text[-80:]!r}"
    data = [line.removeprefix("data: ") for line in text.removesuffix("\n\n").split("\n\n")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def texts_in(events: Iterable[Any]) -> list[str]:
    """Return the texts of chat events; other events are skipped."""
    return [item["choices"][0]["delta"]["content"] for item in events if "choices" in item]
