"""A hostile request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# Placeholder for a word that is new each time: no cache contains the request then, and the log is
# searched for the word.
CANARY = "canary-7f3a"

# Placeholder for the port of a server on loopback that no request may reach.
PORT = "CANARYPORT"


class Expected(StrEnum):
    """The expected response to a request."""

    REFUSED = "refused"  # a status of 4xx
    ANSWERED = "answered"  # 200
    EITHER = "either"  # both are correct


@dataclass(frozen=True)
class Attack:
    """One row of a table."""

    name: str
    # Returns the request: a job's input, its JSON as bytes, or an `Http` request.
    build: Callable[[], Any]
    expected: Expected = Expected.REFUSED
    # Whether the request has done harm before.
    harmful: bool = False
    # Number of concurrent requests.
    times: int = 1
    # Seconds within which the response must arrive; more for rows that are inherently slow.
    limit_s: float = 60.0


@dataclass(frozen=True)
class Http:
    """A request to the HTTP server."""

    method: str = "POST"
    path: str = "/v1/completions"
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    # Seconds after which the caller disconnects; 0 for never.
    patience_s: float = 0

    @property
    def all_headers(self) -> dict[str, str]:
        defaults = {
            "Host": "localhost",
            "Content-Type": "application/json",
            "Content-Length": str(len(self.body)),
        }
        return {**defaults, **self.headers}
