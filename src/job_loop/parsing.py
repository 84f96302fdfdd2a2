"""Parses the platform's responses; a job that can't be parsed doesn't affect the other jobs."""

import asyncio
import json
import logging
import math
import re
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.errors import InvalidInput

log = logging.getLogger(__name__)

ByteArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]

_ID = re.compile(rb'\s*"id"\s*:\s*("(?:[^"\\]|\\.){1,200}")\s*', re.DOTALL)
_QUOTE, _COMMA, _COLON = b'",:'
# Change of the nesting depth at each byte value: 1 for an opening bracket, -1 for a closing one.
_DEPTH_CHANGES = np.zeros(256, np.int8)
_DEPTH_CHANGES[list(b"[{")] = 1
_DEPTH_CHANGES[list(b"]}")] = -1


async def parse_response(body: bytes, max_values: float = math.inf) -> Any:
    """Parse a response as JSON; replace each job that can't be parsed.

    A job that has more than ``max_values`` values, or that Python's parser rejects (its nesting, a
    number with too many digits, invalid UTF-8), is replaced by its id and an ``InvalidInput`` error
    as its input, or by None if it has no readable id. A limit is useful because parsing half a
    million values blocks the event loop for half a second.

    Raises:
        ValueError: If the body is not JSON. In a body with very many values, a job that is not JSON
            is replaced by None instead.
    """
    try:
        if not _may_have_too_many_values(body, max_values):
            return json.loads(body or b"null")
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError):
        pass
    # Use a thread because parsing the jobs separately takes up to a second for 10 MB.
    return await asyncio.to_thread(_parse_jobs_separately, body, max_values)


def find_jobs(response: Any) -> list[dict[str, Any]]:
    """Return the jobs in a response: one job, a list of jobs, or None. Skip jobs without an id."""
    items = response if isinstance(response, list) else [] if response is None else [response]
    jobs = [job for job in items if isinstance(job, dict) and isinstance(job.get("id"), str)]
    if len(jobs) < len(items):
        log.error("the platform sent jobs without an id, which can't be answered")
    return jobs


def find_stopped_job_ids(response: Any) -> list[str]:
    ids = response.get("jobsToStop") if isinstance(response, dict) else None
    items = ids if isinstance(ids, list) else []
    return [job_id for job_id in items if isinstance(job_id, str)]


def _parse_jobs_separately(body: bytes, max_values: float) -> list[Any]:
    is_list = body.lstrip().startswith(b"[")
    return [_parse_job(part, max_values) for part in (_split_items(body) if is_list else [body])]


def _parse_job(text: bytes, max_values: float) -> Any:
    try:
        if not _may_have_too_many_values(text, max_values) or _estimate_values(text) <= max_values:
            return json.loads(text)
        reason = f"it has more than {max_values:,} values"
    except RecursionError:
        reason = "it is nested too deeply"
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except json.JSONDecodeError:
        return None
    except ValueError:
        reason = f"it has a number of more than {sys.get_int_max_str_digits():,} digits"
    ids = [match[1] for part in _split_items(text) if (match := _ID.fullmatch(part))]
    if not ids:
        return None
    return {"id": json.loads(ids[-1]), "input": InvalidInput(f"The job can't be read: {reason}.")}


def _may_have_too_many_values(text: bytes, max_values: float) -> bool:
    """Return whether a JSON text may have more than ``max_values`` values.

    The result may be wrongly True: colons and opening brackets within strings count, too.
    """
    return max(text.count(b":"), text.count(b"{") + text.count(b"[")) > max_values


def _estimate_values(text: bytes) -> int:
    """Return the number of key-value pairs, or of objects and lists if there are more of these."""
    codes, outside = _mask_strings(text)
    colons, brackets = codes == _COLON, _DEPTH_CHANGES[codes] == 1
    return max(int(np.count_nonzero(outside & matches)) for matches in (colons, brackets))


def _mask_strings(text: bytes) -> tuple[ByteArray, BoolArray]:
    """Return a JSON text's bytes with escapes replaced, and a mask of those outside of strings."""
    # Without escapes, every quotation mark starts or ends a string.
    unescaped = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
    codes = np.frombuffer(unescaped, np.uint8)
    return codes, np.cumsum(codes == _QUOTE, dtype=np.uint8) % 2 == 0


def _split_items(text: bytes) -> list[bytes]:
    """Return the items of a list, or the key-value pairs of an object, without parsing them."""
    codes, outside = _mask_strings(text)
    depths = np.cumsum(np.where(outside, _DEPTH_CHANGES[codes], 0), dtype=np.int32)
    commas = np.flatnonzero(outside & (codes == _COMMA) & (depths == 1)).tolist()
    first = int(np.argmax(depths == 1))
    end = first + int(np.argmin(depths[first:]))
    edges = [first, *commas, end]
    return [text[begin + 1 : stop] for begin, stop in pairwise(edges)]
