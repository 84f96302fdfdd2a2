"""Faults on demand in the calls that workers make to the platform."""

import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Call(StrEnum):
    """A worker's call, without its prefix `job-`."""

    TAKE = "take"
    STOP = "stop"
    STREAM = "stream"
    DONE = "done"


class Action(StrEnum):
    """What happens to the call."""

    DELAY = "delay"  # it takes effect, and is answered after `delay_s`
    STATUS = "status"  # it has no effect, and is answered with `status`
    RESET = "reset"  # it has no effect, and its connection is reset
    LOSE = "lose"  # it takes effect, and its connection is reset: no acknowledgement
    DUPLICATE = "duplicate"  # for a take: its jobs are delivered once more


class Fault(BaseModel):
    """One fault: for a number of calls, for some seconds, or until it is cleared."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    on: Call
    do: Action
    status: int = Field(default=500, ge=400, le=599)
    delay_s: float = Field(default=0, ge=0)
    calls: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.do is Action.DUPLICATE and self.on is not Call.TAKE:
            raise ValueError("only a take can be duplicated")
        if (self.do is Action.DELAY) != (self.delay_s > 0):
            raise ValueError("delay_s goes with a delay, and a delay needs it")
        if self.do is not Action.STATUS and "status" in self.model_fields_set:
            raise ValueError("a status is what `do: status` answers")
        return self


def slow_link(delay_s: float) -> tuple[Fault, ...]:
    """Return the faults that delay every POST of a worker; none for a delay of 0."""
    posts = (Call.STREAM, Call.DONE) if delay_s else ()
    return tuple(Fault(on=call, do=Action.DELAY, delay_s=delay_s) for call in posts)


class _ActiveFault:
    """A fault, and for how long it still applies."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.calls_left = fault.calls
        self.until = None if fault.seconds is None else time.monotonic() + fault.seconds

    @property
    def over(self) -> bool:
        return self.calls_left == 0 or (self.until is not None and time.monotonic() >= self.until)


class Faults:
    """The faults that are active now."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._active: list[_ActiveFault] = []
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        self._active.append(_ActiveFault(fault))

    def clear(self) -> None:
        self._active.clear()

    def active(self) -> list[Fault]:
        """Return the active faults, each with the number of calls that it has left."""
        self._active = [active for active in self._active if not active.over]
        return [
            active.fault.model_copy(update={"calls": active.calls_left}) for active in self._active
        ]

    def trigger(self, call: Call, *actions: Action) -> Fault | None:
        """Return the first active fault of this call with one of the actions, and count the call.

        None if there is none.
        """
        for active in self._active:
            if active.fault.on is call and active.fault.do in actions and not active.over:
                if active.calls_left is not None:
                    active.calls_left -= 1
                return active.fault
        return None
