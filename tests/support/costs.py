"""Counts what calls of the worker's code execute: the same figures on any machine, however busy.

``check_costs`` compares them with ``costs.yaml``; with ``WRITE_COSTS`` it writes those that differ.
"""

import contextlib
import gc
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import yaml

from support import ROOT

# Costs may differ from the table by this factor, in both directions.
TOLERANCE = 0.1
TABLE = Path(__file__).with_suffix(".yaml")
# If this variable is set, the table is written instead of compared.
WRITE = "WRITE_COSTS"
_WRITING = WRITE in os.environ

# The worker's code, and code that is neither the worker's nor a library's: its lines and the lines
# of libraries that it calls are not counted.
OWN = tuple(f"{ROOT}/src/{name}" for name in ("worker/", "job_loop/", "handler.py"))
OTHER = (f"{ROOT}/src/", f"{ROOT}/tests/")
# Before Python 3.12, a comprehension has a frame of its own, which executes its line once more.
COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})

_DECODE, _ENCODE = json.JSONDecoder.raw_decode.__code__, json.JSONEncoder.encode.__code__

# Numbers of what a call executes, by unit.
Cost = dict[str, float]

UNITS = {
    "own": "lines of the worker's code",
    "library": "lines of libraries that the worker calls",
    "json": "characters of JSON",
    "modules": "imported modules",
}


class _Tracer:
    """Trace functions that count, for ``sys.settrace``."""

    def __init__(self) -> None:
        self.cost: Cost = {"own": 0, "library": 0, "json": 0}
        self._units: dict[CodeType, str | None] = {}

    def start_frame(self, frame: FrameType, _: str, __: Any) -> Any:
        """Return the function that counts the lines of a frame; None if they are not counted."""
        code = frame.f_code
        if code not in self._units:
            self._units[code] = _find_unit(code)
        unit = self._units[code]
        is_called = frame.f_back is not None and self._counts(frame.f_back)
        if unit is None or (unit == "library" and not is_called):
            return None
        if code is _DECODE:
            self.cost["json"] += len(frame.f_locals["s"])
        if code.co_name in COMPREHENSIONS:
            self.cost[unit] -= 1
        return self._count_own if unit == "own" else self._count_library

    def _counts(self, frame: FrameType) -> bool:
        # A measurement of coverage has functions of its own in the other frames.
        return getattr(frame.f_trace, "__self__", None) is self

    def _count_own(self, _: FrameType, event: str, __: Any) -> Any:
        if event == "line":
            self.cost["own"] += 1
        return self._count_own

    def _count_library(self, frame: FrameType, event: str, result: Any) -> Any:
        if event == "line":
            self.cost["library"] += 1
        elif event == "return" and result is not None and frame.f_code is _ENCODE:
            self.cost["json"] += len(result)
        return self._count_library


def _find_unit(code: CodeType) -> str | None:
    if code.co_filename.startswith(OWN):
        return "own"
    return None if code.co_filename.startswith(OTHER) else "library"


@contextlib.contextmanager
def count_cost() -> Iterator[Cost]:
    """Count what this thread executes in the block, also imports, and what a cache has later."""
    tracer, before, collects = _Tracer(), sys.gettrace(), gc.isenabled()
    # A collection would call functions of weak references in the midst of the worker's lines.
    gc.disable()
    sys.settrace(tracer.start_frame)
    try:
        yield tracer.cost
    finally:
        # A measurement of coverage continues.
        sys.settrace(before)
        if collects:
            gc.enable()


def check_costs(found: Mapping[str, Cost]) -> None:
    """Check the units that the table has for each of these entries."""
    text = TABLE.read_text()
    table: dict[str, Cost] = yaml.safe_load(text)
    problems = []
    for name, cost in found.items():
        different = {
            f"- {name}: {cost[unit]} {UNITS[unit]} instead of {accepted} "
            f"({100 * (cost[unit] / accepted - 1):+.0f} %)"
            for unit, accepted in table[name].items()
            if abs(cost[unit] - accepted) > TOLERANCE * accepted
        }
        problems += sorted(different)
        if different and _WRITING:
            units = ", ".join(f"{unit}: {cost[unit]}" for unit in table[name])
            text = re.sub(rf"(?m)^{re.escape(name)}: .+$", f"{name}: {{{units}}}", text)
    if _WRITING:
        TABLE.write_text(text)
        return
    message = (
        f"Costs differ by more than {TOLERANCE:.0%} from {TABLE.relative_to(ROOT)}. If one has "
        "risen, each job, chunk or start will pay for it. If it is worth it, or if one has fallen, "
        f"{WRITE}=1 makes these tests write the table: commit it with the reason."
    )
    assert not problems, "\n".join([message, *problems])
