"""Faults on demand in the calls that workers make to the platform."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from random import Random
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
    HANG = "hang"  # it has no effect, and no answer until the fault ends or the worker hangs up
    DUPLICATE = "duplicate"  # for a take: its jobs are delivered once more


class Fault(BaseModel):
    """One fault: for a share of the calls, for a number of them, for some seconds, or for all."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    on: Call
    do: Action
    status: int = Field(default=500, ge=400, le=599)
    delay_s: float = Field(default=0, ge=0)
    share: float = Field(default=1, gt=0, le=1)
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


class ActiveFault:
    """A fault, and for how long it still applies."""

    def __init__(self, fault: Fault, random: Random, cleared: asyncio.Event) -> None:
        self.fault = fault
        self.calls_left = fault.calls
        self.until = None if fault.seconds is None else time.monotonic() + fault.seconds
        self._random = random
        self._cleared = cleared

    @property
    def over(self) -> bool:
        return self.calls_left == 0 or (self.until is not None and time.monotonic() >= self.until)

    def triggers(self) -> bool:
        """Draw whether it happens to this call, and count the call if so."""
        if self.over or self._random.random() >= self.fault.share:
            return False
        if self.calls_left is not None:
            self.calls_left -= 1
        return True

    async def hold(self) -> None:
        """Wait until its time is over, or it is cleared."""
        seconds = None if self.until is None else self.until - time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cleared.wait()


class Faults:
    """The faults that are active now.

    Args:
        faults: those that are active from the start.
        seed: every fault draws from a generator of its own, which follows from the seed and the
            number of faults before it: calls that it does not concern have no influence.
    """

    def __init__(self, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self._active: list[ActiveFault] = []
        self._seed = seed
        self._added = 0
        self._cleared = asyncio.Event()
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        random = Random(f"{self._seed} {self._added}")
        self._active.append(ActiveFault(fault, random, self._cleared))
        self._added += 1

    def clear(self) -> None:
        self._active.clear()
        self._cleared.set()
        self._cleared = asyncio.Event()

    def active(self) -> list[Fault]:
        """Return the active faults, each with the number of calls that it has left."""
        self._active = [active for active in self._active if not active.over]
        return [
            active.fault.model_copy(update={"calls": active.calls_left}) for active in self._active
        ]

    def trigger(self, call: Call, *actions: Action) -> ActiveFault | None:
        """Return the first active fault of this call with one of the actions that triggers.

        None if there is none.
        """
        for active in self._active:
            if active.fault.on is call and active.fault.do in actions and active.triggers():
                return active
        return None
