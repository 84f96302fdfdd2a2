"""The input of a batch: its lines, read one by one, and the mistakes in them."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from worker.validation import Strict

BOM = b"\xef\xbb\xbf"
MOST_MISTAKES = 100
LONGEST_ID = 512
# Shards for each job that shares a batch: one that ends early takes another.
SHARDS_OF_A_JOB = 8


def mistake(code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an item of OpenAI's ``errors`` of a batch, as a whole or, with a line, of that."""
    return {"code": code, "message": message, "param": param, "line": None}


INPUT_CHANGED = mistake(
    "input_changed", "the input has changed or was removed since the batch began"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank.

    Args:
        number: counted in the file, from 1.
        offset: where it begins, in bytes.
        text: without its end; None: it is longer than it may be.
    """

    number: int
    offset: int
    text: bytes | None


class Shard(Strict):
    """Lines that one worker answers.

    Args:
        first: the number of the first.
        begin: where it begins in the file, in bytes; ``end``: behind the last.
        count: how many there are.
    """

    first: int
    begin: int
    end: int
    count: int


class Plan(Strict):
    """A valid input, cut into shards; with its size and time, by which a change is noticed."""

    total: int
    shards: tuple[Shard, ...]
    size: int
    mtime_ns: int
    made_at: int

    def holds(self, path: Path) -> bool:
        """Return whether the input is still what was planned."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


class WrongLineError(Exception):
    """A line can't be a request; its mistake says why, without the caller's words."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.mistake = mistake(code, message, param)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that an input may have: lines, and of one its bytes and values."""

    lines: int
    bytes_of_a_line: int
    values_of_a_line: int = 100_000


def lines(path: Path, longest: int, shard: Shard | None = None) -> Iterator[Line]:
    """Yield the lines of a file, or of a part of it, that are not blank.

    Raises:
        OSError: it can't be read.
    """
    number, offset = (shard.first, shard.begin) if shard else (1, 0)
    with path.open("rb") as opened:
        opened.seek(offset)
        while shard is None or offset < shard.end:
            text = opened.readline(longest + 2)
            if not text:
                return
            begin, offset = offset, offset + len(text)
            whole = text.endswith(b"\n") or len(text) < longest + 2
            while not text.endswith(b"\n") and (rest := opened.readline(longest)):
                offset += len(rest)
                text = rest
                whole = False
            content = text.removeprefix(BOM if begin == 0 else b"").strip()
            if content or not whole:
                yield Line(number, begin, content if whole and len(content) <= longest else None)
            number += 1


def request_in(line: Line, endpoint: str) -> dict[str, Any]:
    """Parse a line.

    Raises:
        WrongLineError: it is no request to the endpoint.
    """
    if line.text is None:
        message = "the line has more bytes than a request may have (MAX_INPUT_MB)"
        raise WrongLineError("line_too_large", message)
    try:
        found = msgspec.json.decode(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WrongLineError("invalid_json_line", "the line is no JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise WrongLineError("invalid_json_line", "the line is no JSON object")
    name, body = found.get("custom_id"), found.get("body")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        message = f"custom_id: a text of 1 to {LONGEST_ID} characters"
        raise WrongLineError("invalid_custom_id", message, "custom_id")
    for key, value in (("method", "POST"), ("url", endpoint)):
        if found.get(key) != value:
            raise WrongLineError(f"invalid_{key}", f"{key}: {value}, as all lines have it", key)
    if not isinstance(body, dict) or body.get("stream"):
        raise WrongLineError("invalid_body", "body: a JSON object, without stream", "body")
    return found


def planned(
    path: Path, endpoint: str, limits: Limits, jobs: int, now: int
) -> Plan | list[dict[str, Any]]:
    """Read an input once, and cut it into shards; or return the first hundred mistakes in it.

    Args:
        path: of the input.
        endpoint: the URL that each line has to have.
        limits: of the input.
        jobs: how many jobs share it.
        now: the time, in seconds since 1970.

    Raises:
        OSError: it can't be read.
    """
    stat = path.stat()
    mistakes: list[dict[str, Any]] = []
    names: dict[str, int] = {}
    offsets, numbers = array("Q"), array("I")
    for line in lines(path, limits.bytes_of_a_line):
        if len(offsets) == limits.lines:
            message = f"the input has more than {limits.lines:,} lines (BATCH_MAX_REQUESTS)"
            mistakes.append(mistake("too_many_requests", message))
            break
        offsets.append(line.offset)
        numbers.append(line.number)
        try:
            _note(names, line, endpoint)
        except WrongLineError as wrong:
            mistakes.append({**wrong.mistake, "line": line.number})
            if len(mistakes) == MOST_MISTAKES:
                break
    if not offsets:
        mistakes.append(mistake("empty_file", "the input has no lines"))
    if mistakes:
        return mistakes
    shards = _shards(offsets, numbers, stat.st_size, jobs)
    return Plan(
        total=len(offsets),
        shards=shards,
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        made_at=now,
    )


def _note(names: dict[str, int], line: Line, endpoint: str) -> None:
    """Note a line by its custom_id.

    Raises:
        WrongLineError: it is no request, or an earlier one has its custom_id.
    """
    name = request_in(line, endpoint)["custom_id"]
    if (other := names.setdefault(name, line.number)) != line.number:
        message = f"custom_id: line {other} has it, too"
        raise WrongLineError("duplicate_custom_id", message, "custom_id")


def _shards(
    offsets: "array[int]", numbers: "array[int]", size: int, jobs: int
) -> tuple[Shard, ...]:
    wanted = 1 if jobs == 1 else min(jobs * SHARDS_OF_A_JOB, len(offsets))
    edges = [len(offsets) * index // wanted for index in range(wanted + 1)]
    ends = [*(offsets[edge] for edge in edges[1:-1]), size]
    return tuple(
        Shard(first=numbers[first], begin=offsets[first], end=end, count=behind - first)
        for first, behind, end in zip(edges, edges[1:], ends, strict=False)
    )
