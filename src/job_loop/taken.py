"""What the platform answers, as JSON: a job that can't be read spoils none that came with it."""

import asyncio
import json
import math
import re
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.errors import InvalidInput

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_ID = re.compile(rb'\s*"id"\s*:\s*("(?:[^"\\]|\\.){1,200}")\s*', re.DOTALL)
_QUOTE, _COMMA, _COLON = b'",:'
# How much deeper a character leads.
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


async def parsed(body: bytes, most_values: float = math.inf) -> Any:
    """Parse an answer.

    A job that Python's parser refuses, for its depth or the digits of a number, or that has too
    many values, has an ``InvalidInput`` in place of its input.

    Args:
        body: of the answer.
        most_values: of a job. Half a million take half a second, in which nothing else runs.

    Raises:
        ValueError: this is no JSON.
    """
    try:
        if not _may_have_more(body, most_values):
            return json.loads(body or b"null")
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError):
        pass
    # Up to a second for 10 MB.
    return await asyncio.to_thread(_each_by_itself, body, most_values)


def _each_by_itself(body: bytes, most_values: float) -> list[Any]:
    several = body.lstrip().startswith(b"[")
    return [_job(part, most_values) for part in (_parts(body) if several else [body])]


def _job(text: bytes, most_values: float) -> Any:
    try:
        if not _may_have_more(text, most_values) or _values(text) <= most_values:
            return json.loads(text)
        reason = f"it has more than {most_values:,} values (MAX_INPUT_VALUES)"
    except RecursionError:
        reason = "it is nested too deeply"
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except json.JSONDecodeError:
        return None
    except ValueError:
        reason = f"it has a number of more than {sys.get_int_max_str_digits():,} digits"
    ids = [found[1] for part in _parts(text) if (found := _ID.fullmatch(part))]
    if not ids:
        return None
    return {"id": json.loads(ids[-1]), "input": InvalidInput(f"The job can't be read: {reason}.")}


def _may_have_more(text: bytes, most_values: float) -> bool:
    """Whether a text has more colons or opening brackets: they may also stand in its strings."""
    return max(text.count(b":"), text.count(b"{") + text.count(b"[")) > most_values


def _values(text: bytes) -> int:
    """Count the values of objects, or the objects and lists if those are more."""
    codes, outside = _read(text)
    colons, brackets = codes == _COLON, _STEPS[codes] == 1
    return max(int(np.count_nonzero(outside & found)) for found in (colons, brackets))


def _read(text: bytes) -> tuple[Bytes, Flags]:
    """Return a text's bytes, and which of them stand outside of strings."""
    # Without escapes every quotation mark begins or ends a string.
    plain = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
    codes = np.frombuffer(plain, np.uint8)
    return codes, np.cumsum(codes == _QUOTE, dtype=np.uint8) % 2 == 0


def _parts(text: bytes) -> list[bytes]:
    """Return the items of a list, or the pairs of an object, without a look inside them."""
    codes, outside = _read(text)
    depths = np.cumsum(np.where(outside, _STEPS[codes], 0), dtype=np.int32)
    commas = np.flatnonzero(outside & (codes == _COMMA) & (depths == 1)).tolist()
    first = int(np.argmax(depths == 1))
    end = first + int(np.argmin(depths[first:]))
    edges = [first, *commas, end]
    return [text[one + 1 : other] for one, other in pairwise(edges)]
