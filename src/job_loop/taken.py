"""What the platform answers, as JSON: a job that can't be read spoils none that came with it."""

import asyncio
import json
import re
import sys
from itertools import pairwise
from typing import Any

import numpy as np

from worker.errors import InvalidInput

_ID = re.compile(rb'\s*"id"\s*:\s*("(?:[^"\\]|\\.){1,200}")\s*', re.DOTALL)
_QUOTE, _COMMA = b'",'
# How much deeper a character leads.
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


async def parsed(body: bytes) -> Any:
    """Parse an answer.

    A job that Python's parser refuses, for its depth or the digits of a number, has an
    ``InvalidInput`` in place of its input.

    Raises:
        ValueError: this is no JSON.
    """
    try:
        return json.loads(body or b"null")
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError):
        # Up to a second for 10 MB.
        return await asyncio.to_thread(_each_by_itself, body)


def _each_by_itself(body: bytes) -> list[Any]:
    several = body.lstrip().startswith(b"[")
    return [_job(part) for part in (_parts(body) if several else [body])]


def _job(text: bytes) -> Any:
    try:
        return json.loads(text)
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


def _parts(text: bytes) -> list[bytes]:
    """Return the items of a list, or the pairs of an object, without a look inside them."""
    # Without escapes every quotation mark begins or ends a string.
    plain = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
    codes = np.frombuffer(plain, np.uint8)
    outside = np.cumsum(codes == _QUOTE, dtype=np.uint8) % 2 == 0
    depths = np.cumsum(np.where(outside, _STEPS[codes], 0), dtype=np.int32)
    commas = np.flatnonzero(outside & (codes == _COMMA) & (depths == 1)).tolist()
    first = int(np.argmax(depths == 1))
    end = first + int(np.argmin(depths[first:]))
    edges = [first, *commas, end]
    return [text[one + 1 : other] for one, other in pairwise(edges)]
