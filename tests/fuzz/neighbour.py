"""A well-behaved caller beside the hostile ones: asks for four tokens again and again, in a process
of its own, and notes how long each answer took.
"""

import json
import multiprocessing
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from multiprocessing.queues import Queue
from queue import Empty
from typing import Any

from fuzz.target import Target

# Seconds: between two of its requests; until it gives one up.
PAUSE_S = 0.02
LIMIT_S = 150.0
ALONE = 100

_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Call:
    """A request of its: when it began and ended (``time.monotonic``); whether it was answered."""

    began: float
    ended: float
    good: bool

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Neighbour:
    """What is known about it."""

    calls: "Queue[Call]"
    # How long the slowest of a hundred calls took while nobody else asked.
    alone_s: float = 0.0
    # Whether its last call was answered.
    well: bool = True
    _ended: float = field(default_factory=time.monotonic)

    def measure_alone(self) -> None:
        calls = [self.calls.get(timeout=LIMIT_S) for _ in range(ALONE)]
        # The first ones find caches empty.
        self.alone_s = sorted(call.seconds for call in calls[5:])[-2]

    def during(self, began: float) -> list[Call]:
        """Return the calls that ended after a moment, up to one that begins after now."""
        now = time.monotonic()
        calls: list[Call] = []
        while not calls or calls[-1].began < now:
            try:
                call = self.calls.get(timeout=LIMIT_S)
            except Empty:
                calls.append(Call(self._ended, time.monotonic(), good=False))
                break
            self._ended = call.ended
            if call.ended >= began:
                calls.append(call)
        self.well = calls[-1].good
        return calls


def longest_s(calls: list[Call]) -> float:
    return max(call.seconds for call in calls)


@contextmanager
def neighbour(target: Target) -> Iterator[Neighbour]:
    """Start it; leaving ends it."""
    calls: Queue[Call] = _context.Queue()
    path, body, answered = target.hello
    asked = (target.url + path, body, answered, calls)
    process = _context.Process(target=_ask, args=asked, daemon=True)
    process.start()
    try:
        beside = Neighbour(calls)
        beside.measure_alone()
        yield beside
    finally:
        process.kill()
        process.join()
        calls.cancel_join_thread()


def _ask(url: str, body: dict[str, Any], answered: str, calls: "Queue[Call]") -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    while True:
        began = time.monotonic()
        try:
            good = answered in _answer(request)
        except OSError:
            good = False
        calls.put(Call(began, time.monotonic(), good))
        time.sleep(PAUSE_S)


def _answer(request: urllib.request.Request) -> str:
    """Return an answer; a full worker is asked again, as clients do."""
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refusal:
            if refusal.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > until:
                raise
        time.sleep(PAUSE_S)
