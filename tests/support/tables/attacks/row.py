"""A hostile request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# Stands in a request for a word that is new each time it is sent: no cache knows the request then,
# and the word is looked for in the log.
CANARY = "canary-7f3a"

# Stands for the port of a server on loopback that nobody may call.
PORT = "CANARYPORT"


class Expected(StrEnum):
    """How a request may end."""

    REFUSED = "refused"  # a status of 4xx
    ANSWERED = "answered"  # 200
    EITHER = "either"  # honest whichever it is


@dataclass(frozen=True)
class Attack:
    """One row."""

    name: str
    # What is sent: a job's input, its JSON as bytes, or an `Http` request.
    build: Callable[[], Any]
    expected: Expected = Expected.REFUSED
    # Whether it did harm once.
    harmful: bool = False
    # How often it is sent at once.
    times: int = 1
    # Seconds until it must be answered; more for rows that are slow by nature.
    limit_s: float = 60.0


@dataclass(frozen=True)
class Http:
    """A request for the HTTP server."""

    method: str = "POST"
    path: str = "/v1/completions"
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    # The caller hangs up after so many seconds; 0: it does not.
    patience_s: float = 0

    @property
    def all_headers(self) -> dict[str, str]:
        defaults = {
            "Host": "localhost",
            "Content-Type": "application/json",
            "Content-Length": str(len(self.body)),
        }
        return {**defaults, **self.headers}
