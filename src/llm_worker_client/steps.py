"""What it takes to answer a request, step by step, without doing any of it.

Generators yield steps; ``endpoint`` takes them, with asyncio or without.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to the platform, which is answered with a ``Reply``.

    Args:
        method: of HTTP.
        path: below the endpoint's address, with the query string.
        content: the body, JSON.
        timeout_s: seconds that the platform may be silent.
        starts_job: whether the answer has the id of a new job, which has to be read.
    """

    method: str
    path: str
    content: bytes | None = None
    timeout_s: float = 60.0
    starts_job: bool = False

    @property
    def operation(self) -> str:
        """What it does: ``run``, ``stream``, ``status``, …"""
        return self.path.split("?")[0].split("/")[1]


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds to wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Store:
    """A file that no job holds: put it on the volume, and answer with its key there.

    Args:
        path: where it is now.
        name: what the caller calls it.
    """

    path: Path
    name: str | None


@dataclass(frozen=True, slots=True)
class Head:
    """How the response begins; what is yielded after it are bytes of its body."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """The platform's answer. The names of headers are in small letters."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Unreachable(Exception):
    """The platform did not answer a request.

    Args:
        reason: for the caller.
        sent: whether the platform may have had the request.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class NotStored(Exception):
    """A file is not on the volume.

    Args:
        reason: for the caller.
        status: of HTTP; 413: no volume is set.
    """

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class TookTooLong(Exception):
    """Nothing has come for as long as the caller waits."""


T = TypeVar("T")
Step = Ask | Pause | Store | Head | bytes
# What is sent in is a Reply for an Ask, a key for a Store, and None otherwise.
Steps = Generator[Step, Any, T]
