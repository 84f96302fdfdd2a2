"""Reads and validates the lines in the input of a batch, and divides the input into shards."""

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from worker.compression import find_compression
from worker.limits.inputs import MAX_VALUES
from worker.validation import StrictModel

BOM = b"\xef\xbb\xbf"
MAX_MISTAKES = 100
MAX_CUSTOM_ID_LENGTH = 512
# Shards per job if several jobs share a batch: a job that finishes early takes another shard.
SHARDS_PER_JOB = 8


def make_mistake(code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an item of ``errors`` in OpenAI's batch object, without a line number."""
    return {"code": code, "message": message, "param": param, "line": None}


INPUT_CHANGED = make_mistake(
    "input_changed", "the input has changed or was removed since the batch began"
)
WORKERS_DIED = make_mistake(
    "workers_died", "too many workers died while they ran the batch: a request may have killed them"
)


@dataclass(frozen=True, slots=True)
class InputLine:
    """A non-blank line of an input.

    Args:
        number: Line number in the file, from 1.
        offset: Offset of the line in the file, in bytes.
        text: Text without whitespace around it; None if the line is too long.
    """

    number: int
    offset: int
    text: bytes | None


class Shard(StrictModel):
    """Consecutive lines of an input, which one worker at a time answers.

    Args:
        first: Number of the first line.
        begin: Offset of the first line in the file, in bytes.
        end: Offset after the last line, in bytes.
        count: Number of lines that are not blank.
    """

    first: int
    begin: int
    end: int
    count: int


class BatchPlan(StrictModel):
    """The shards of a valid input, and the input's size and modification time to detect changes.

    ``total`` is the number of lines that are not blank. The validation of the input began at
    ``made_at``, in seconds since 1970.
    """

    total: int
    shards: tuple[Shard, ...]
    size: int
    mtime_ns: int
    made_at: int

    def matches_input(self, path: Path) -> bool:
        """Return whether a file is the unchanged input; False if it doesn't exist."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


class InvalidLine(Exception):
    """A line is not a valid request. Its ``mistake`` says why, without text from the line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.mistake = make_mistake(code, message, param)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Maximum number of lines in an input, and maximum bytes and JSON values of a line."""

    max_lines: int
    max_line_bytes: int
    max_line_values: int = MAX_VALUES


def read_lines(path: Path, max_bytes: int, shard: Shard | None = None) -> Iterator[InputLine]:
    """Yield the non-blank lines of a file or shard; a line over ``max_bytes`` has no ``text``."""
    number, offset = (shard.first, shard.begin) if shard else (1, 0)
    with path.open("rb") as file:
        file.seek(offset)
        while shard is None or offset < shard.end:
            raw = file.readline(max_bytes + 2)  # with the line break, which may be CRLF
            if not raw:
                return
            start, offset = offset, offset + len(raw)
            is_complete = raw.endswith(b"\n") or len(raw) < max_bytes + 2
            # Skip the rest of a line that is too long.
            while not raw.endswith(b"\n") and (rest := file.readline(max_bytes)):
                offset += len(rest)
                raw = rest
                is_complete = False
            text = raw.removeprefix(BOM if start == 0 else b"").strip()
            if text or not is_complete:
                yield InputLine(
                    number, start, text if is_complete and len(text) <= max_bytes else None
                )
            number += 1


def parse_request(line: InputLine, endpoint: str) -> dict[str, Any]:
    """Return the request in a line; of its body, only the type and ``stream`` are checked.

    Raises:
        InvalidLine: The line is not a request to the endpoint.
    """
    if line.text is None:
        message = "the line has more bytes than a request may have (MAX_INPUT_MB)"
        raise InvalidLine("line_too_large", message)
    try:
        request = msgspec.json.decode(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidLine("invalid_json_line", _describe_flaw(line.text)) from None
    if not isinstance(request, dict):
        raise InvalidLine("invalid_json_line", "the line is not a JSON object")
    custom_id, body = request.get("custom_id"), request.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_LENGTH:
        message = f"custom_id: a text of 1 to {MAX_CUSTOM_ID_LENGTH} characters"
        raise InvalidLine("invalid_custom_id", message, "custom_id")
    for key, value in (("method", "POST"), ("url", endpoint)):
        if request.get(key) != value:
            raise InvalidLine(f"invalid_{key}", f"{key}: {value}, as in all lines", key)
    if not isinstance(body, dict) or body.get("stream"):
        raise InvalidLine("invalid_body", "body: a JSON object, without stream", "body")
    return request


def _describe_flaw(text: bytes) -> str:
    """Return why a line can't be decoded."""
    try:
        # Unlike msgspec, Python decodes half of a surrogate pair, but can't encode it.
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a text in the line contains half of a surrogate pair"
    except (ValueError, RecursionError):
        pass
    return "the line is not valid JSON in UTF-8"


def plan_input(
    path: Path, endpoint: str, limits: BatchLimits, jobs: int, now: int
) -> BatchPlan | list[dict[str, Any]]:
    """Divide an input into shards; if it is invalid, return its first ``MAX_MISTAKES`` mistakes.

    Args:
        path: Path of the input.
        endpoint: Value that ``url`` must have in each line.
        limits: Limits of the input.
        jobs: Number of jobs that share the input.
        now: Current time in seconds since 1970.
    """
    stat = path.stat()
    if compression := find_compression(path):
        message = f"the input is compressed ({compression}): send it uncompressed"
        return [make_mistake("compressed_file", message)]
    mistakes: list[dict[str, Any]] = []
    first_lines: dict[str, int] = {}
    offsets, numbers = array("Q"), array("I")
    for line in read_lines(path, limits.max_line_bytes):
        if len(offsets) == limits.max_lines:
            message = f"the input has more than {limits.max_lines:,} lines (BATCH_MAX_REQUESTS)"
            mistakes.append(make_mistake("too_many_requests", message))
            break
        offsets.append(line.offset)
        numbers.append(line.number)
        try:
            custom_id = parse_request(line, endpoint)["custom_id"]
        except InvalidLine as error:
            mistake = error.mistake
        else:
            first_line = first_lines.setdefault(custom_id, line.number)
            if first_line == line.number:
                continue
            message = f"custom_id: line {first_line} has it, too"
            mistake = make_mistake("duplicate_custom_id", message, "custom_id")
        mistakes.append({**mistake, "line": line.number})
        if len(mistakes) == MAX_MISTAKES:
            break
    if not offsets:
        mistakes.append(make_mistake("empty_file", "the input has no lines"))
    if mistakes:
        return mistakes
    count = 1 if jobs == 1 else min(jobs * SHARDS_PER_JOB, len(offsets))
    edges = [len(offsets) * index // count for index in range(count + 1)]
    ends = [*(offsets[edge] for edge in edges[1:-1]), stat.st_size]
    return BatchPlan(
        total=len(offsets),
        shards=tuple(
            Shard(first=numbers[first], begin=offsets[first], end=end, count=next_first - first)
            for first, next_first, end in zip(edges[:-1], edges[1:], ends, strict=True)
        ),
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        made_at=now,
    )
