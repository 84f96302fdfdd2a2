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
    """A type of call of workers to the platform, named as its route without the prefix ``job-``."""

    TAKE = "take"
    STOP = "stop"
    STREAM = "stream"
    DONE = "done"


class Action(StrEnum):
    """The effect of a fault on a call."""

    DELAY = "delay"  # the call takes effect, and its response is delayed by `delay_s`
    STATUS = "status"  # the call has no effect, and its response has the status `status`
    RESET = "reset"  # the call has no effect, and its connection is reset
    LOSE = "lose"  # the call takes effect, and its connection is reset without a response
    HANG = "hang"  # the call has no effect; its connection is reset at the fault's end
    DUPLICATE = "duplicate"  # only for a take: its jobs are delivered a second time


class Fault(BaseModel):
    """A fault in calls of workers, until its ``calls`` or its ``seconds`` are used up.

    ``share`` is the probability that a call is affected. ``status`` is only for ``Action.STATUS``,
    ``delay_s`` only for ``Action.DELAY``. ``calls`` and ``seconds`` are unlimited if None.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    on: Call
    do: Action
    status: int = Field(default=500, ge=400, le=599)
    delay_s: float = Field(default=0, ge=0)
    share: float = Field(default=1, gt=0, le=1)
    calls: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.do is Action.DUPLICATE and self.on is not Call.TAKE:
            raise ValueError("only a take can be duplicated")
        if (self.do is Action.DELAY) != (self.delay_s > 0):
            raise ValueError("delay_s goes with a delay, and a delay needs it")
        if self.do is not Action.STATUS and "status" in self.model_fields_set:
            raise ValueError("a status is what `do: status` answers")
        return self


def faults_that_delay_posts(delay_s: float) -> tuple[Fault, ...]:
    """Return the faults that delay every POST of a worker; no faults for a delay of 0."""
    posts = (Call.STREAM, Call.DONE) if delay_s else ()
    return tuple(Fault(on=call, do=Action.DELAY, delay_s=delay_s) for call in posts)


class ActiveFault:
    """A fault with the number of calls and the time that it has left."""

    def __init__(self, fault: Fault, random: Random, cleared: asyncio.Event) -> None:
        self.fault = fault
        self.calls_left = fault.calls
        self.end = None if fault.seconds is None else time.monotonic() + fault.seconds
        self._random = random
        self._cleared = cleared

    @property
    def is_over(self) -> bool:
        return self.calls_left == 0 or (self.end is not None and time.monotonic() >= self.end)

    def try_trigger(self) -> bool:
        """Decide at random whether the fault applies to a call, and count the call if it does."""
        if self.is_over or self._random.random() >= self.fault.share:
            return False
        if self.calls_left is not None:
            self.calls_left -= 1
        return True

    async def wait_until_over(self) -> None:
        """Wait until the fault's time is over or all faults are cleared."""
        seconds = None if self.end is None else self.end - time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cleared.wait()


class Faults:
    """The faults that are currently active.

    Each fault has its own random generator, seeded with ``seed`` and the number of earlier faults,
    so calls of other types don't change its random decisions.
    """

    def __init__(self, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self._active: list[ActiveFault] = []
        self._seed = seed
        self._added_count = 0
        self._cleared = asyncio.Event()
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        random = Random(f"{self._seed} {self._added_count}")
        self._active.append(ActiveFault(fault, random, self._cleared))
        self._added_count += 1

    def clear(self) -> None:
        self._active.clear()
        self._cleared.set()
        self._cleared = asyncio.Event()

    def list_active(self) -> list[Fault]:
        """Return the active faults, each with the number of calls that it has left."""
        self._active = [active for active in self._active if not active.is_over]
        return [
            active.fault.model_copy(update={"calls": active.calls_left}) for active in self._active
        ]

    def trigger_first(self, call: Call, *actions: Action) -> ActiveFault | None:
        """Return the first fault of the actions that affects the call, if any; count the call."""
        for active in self._active:
            if active.fault.on is call and active.fault.do in actions and active.try_trigger():
                return active
        return None
