"""Ranges of a content, as a request asks for them (RFC 9110)."""

import re

from llm_worker_client.mapping.errors import Refusal

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
# Of a number that is larger than every content.
_MOST_DIGITS = 20


def read(header: str, size: int) -> tuple[int, int] | None:
    """Return the bytes that are asked for, from the first to before the last; None: all.

    Several ranges at once are all, too, which a server may answer.

    Args:
        header: the request's ``Range``.
        size: of the content.

    Raises:
        Refusal: there are no such bytes.
    """
    found = _RANGE.fullmatch(header.replace(" ", ""))
    if not found or not any(found.groups()):
        return None
    first, last = map(_number, found.groups())
    if first is None:
        begin, end = max(0, size - (last or 0)), size
    else:
        if last is not None and last < first:
            return None
        begin, end = first, size if last is None else min(size, last + 1)
    if begin >= end:
        raise Refusal(416, f"Range: the content has {size:,} bytes")
    return begin, end


def _number(digits: str) -> int | None:
    """Return a number; one that Python doesn't convert, for its length, is only large."""
    return int(digits.lstrip("0")[:_MOST_DIGITS] or 0) if digits else None
