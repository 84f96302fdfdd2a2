"""Faults on demand: what goes wrong between the platform and its workers, and for how long."""

import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Call(StrEnum):
    """A call that a worker makes."""

    TAKE = "take"
    STOP = "stop"
    STREAM = "stream"
    DONE = "done"


class Action(StrEnum):
    """What happens to the call."""

    DELAY = "delay"  # it counts from its arrival; its answer takes `delay_s`
    STATUS = "status"  # it does nothing and is answered with `status`
    RESET = "reset"  # it does nothing and its connection is reset
    LOSE = "lose"  # it does what it should and its connection is reset: no acknowledgement
    DUPLICATE = "duplicate"  # of a take: what it delivers is delivered once more


class Fault(BaseModel):
    """One thing that goes wrong: for some calls, for some seconds, or until it is cleared."""

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
    """What lets every POST of a worker take so long, until it is cleared."""
    posts = (Call.STREAM, Call.DONE) if delay_s else ()
    return tuple(Fault(on=call, do=Action.DELAY, delay_s=delay_s) for call in posts)


class _Active:
    """A fault and what is left of it."""

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
        self._active: list[_Active] = []
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        self._active.append(_Active(fault))

    def clear(self) -> None:
        self._active.clear()

    def active(self) -> list[Fault]:
        """Those with something left, each with the calls it has left."""
        self._active = [active for active in self._active if not active.over]
        return [
            active.fault.model_copy(update={"calls": active.calls_left}) for active in self._active
        ]

    def meet(self, call: Call, *actions: Action) -> Fault | None:
        """The first fault of these kinds that this call runs into; it has one call less then."""
        for active in self._active:
            if active.fault.on is call and active.fault.do in actions and not active.over:
                if active.calls_left is not None:
                    active.calls_left -= 1
                return active.fault
        return None
