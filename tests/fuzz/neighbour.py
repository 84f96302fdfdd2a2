"""A well-behaved caller next to the hostile ones.

It repeatedly requests four tokens, in a separate process, and records how long each response took.
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

# Seconds between two of its requests, and its timeout.
PAUSE_S = 0.02
LIMIT_S = 150.0
CALLS_ALONE = 100

_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Call:
    """A request of the neighbour, with its times by ``time.monotonic``.

    ``good`` is whether the request was answered.
    """

    started_at: float
    ended: float
    good: bool

    @property
    def seconds(self) -> float:
        return self.ended - self.started_at


@dataclass
class Neighbour:
    """The recorded calls of the well-behaved caller."""

    calls: "Queue[Call]"
    # Duration of the slowest of a hundred calls without other callers.
    alone_s: float = 0.0
    # Whether its last call was answered.
    is_healthy: bool = True
    _last_end: float = field(default_factory=time.monotonic)

    def measure_alone(self) -> None:
        calls = [self.calls.get(timeout=LIMIT_S) for _ in range(CALLS_ALONE)]
        # The first calls run with empty caches.
        self.alone_s = sorted(call.seconds for call in calls[5:])[-2]

    def calls_since(self, started_at: float) -> list[Call]:
        """Return the calls that ended after a time, up to the first one that begins after now."""
        now = time.monotonic()
        calls: list[Call] = []
        while not calls or calls[-1].started_at < now:
            try:
                call = self.calls.get(timeout=LIMIT_S)
            except Empty:
                calls.append(Call(self._last_end, time.monotonic(), good=False))
                break
            self._last_end = call.ended
            if call.ended >= started_at:
                calls.append(call)
        self.is_healthy = calls[-1].good
        return calls


def longest_s(calls: list[Call]) -> float:
    return max(call.seconds for call in calls)


@contextmanager
def start_neighbour(target: Target) -> Iterator[Neighbour]:
    """Start the neighbour; on exit, stop it."""
    calls: Queue[Call] = _context.Queue()
    path, body, expected = target.hello
    arguments = (target.url + path, body, expected, calls)
    process = _context.Process(target=_call_repeatedly, args=arguments, daemon=True)
    process.start()
    try:
        neighbour = Neighbour(calls)
        neighbour.measure_alone()
        yield neighbour
    finally:
        process.kill()
        process.join()
        calls.cancel_join_thread()


def _call_repeatedly(url: str, body: dict[str, Any], expected: str, calls: "Queue[Call]") -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    while True:
        started_at = time.monotonic()
        try:
            good = expected in _get_answer(request)
        except OSError:
            good = False
        calls.put(Call(started_at, time.monotonic(), good))
        time.sleep(PAUSE_S)


def _get_answer(request: urllib.request.Request) -> str:
    """Return a response; retry while the worker is full, as clients do."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)
