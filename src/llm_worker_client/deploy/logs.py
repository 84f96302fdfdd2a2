"""Reads the log of a worker, which the platform sends as a stream of events."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.errors import Problem, Unreachable

# Seconds without a line after which a stream is opened again, and before that.
_QUIET_S = 60.0
_PAUSE_S = 1.0
# Streams in a row that break off before a line.
_TRIES = 5


@dataclass(frozen=True)
class LogLine:
    """A line of a worker's log; ``source`` is ``container`` or ``system``."""

    identity: str
    source: str
    text: str


@dataclass
class Log:
    """A worker's log.

    Attributes:
        api: the account's endpoints.
        endpoint: its id.
        worker: its id.
        query: ``tail``, ``since``, ``source``, as the platform has them.
    """

    api: Api
    endpoint: str
    worker: str
    query: dict[str, str]
    _last: str = ""
    # Lines with the last identity, which is but a time.
    _seen: int = 0
    _failures: int = 0

    def read(self, idle_s: float) -> Iterator[LogLine]:
        """Yield lines until none has come for so many seconds.

        Raises:
            Problem: the platform refuses it.
            Unreachable: the stream broke off.
        """
        headers = {"Accept": "text/event-stream"}
        if self._last:
            headers["Last-Event-ID"] = self._last
        url = self.api.of(self.endpoint, "workers", self.worker, "logs")
        with self.api.calls.stream(url, self.query, headers, idle_s) as lines:
            known, known_id = self._seen, self._last
            for line in _events(lines):
                # A stream that is opened again may begin with the lines that were seen last.
                if known and line.identity == known_id:
                    known -= 1
                    continue
                known = 0
                self._seen = self._seen + 1 if line.identity == self._last else 1
                self._last, self._failures = line.identity, 0
                yield line

    def follow(self) -> Iterator[LogLine]:
        """Yield lines until the worker is gone, also when the stream breaks off.

        Raises:
            Problem: the platform refuses it.
            Unreachable: the platform can't be reached any more.
        """
        while True:
            try:
                yield from self.read(_QUIET_S)
            except Unreachable:
                self._failures += 1
                if self._failures == _TRIES:
                    raise
            except Problem as problem:
                if self._last and problem.status == 404:
                    return
                raise
            self.api.calls.sleep(_PAUSE_S)


def _events(lines: Iterator[str]) -> Iterator[LogLine]:
    identity = ""
    for line in lines:
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "id":
            identity = value
        elif key == "data":
            try:
                entry = json.loads(value)
                yield LogLine(identity, entry["source"], entry["line"])
            except (ValueError, LookupError, TypeError):
                yield LogLine(identity, "", value)
