"""The steps of answering a request, which generators yield and ``endpoint`` performs."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class PlatformRequest:
    """A request to the platform; the generator is resumed with its ``PlatformReply``."""

    method: str
    path: str  # below the endpoint's URL, with the query string
    content: bytes | None = None
    timeout_s: float = 60.0  # for the platform's response
    starts_job: bool = False  # the response has the id of a new job, which must not be lost

    @property
    def operation(self) -> str:
        """The operation of the platform's API: ``run``, ``stream``, ``status`` and so on."""
        return self.path.split("?")[0].split("/")[1]


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause between two requests."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file to upload to the volume; the generator is resumed with its key on the volume."""

    path: Path
    name: str | None  # the caller's name for the file, if any


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers of a response; the bytes of its body follow as separate steps."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlatformReply:
    """A response of the platform. Header names are lowercase."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class PlatformUnreachable(Exception):
    """The platform did not respond to a request, which ``may_have_arrived``."""

    def __init__(self, reason: str, *, may_have_arrived: bool) -> None:
        super().__init__(reason)
        self.may_have_arrived = may_have_arrived


class FileNotStored(Exception):
    """A file could not be stored on the volume; ``status`` is 413 if no volume is configured."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class ReadTimedOut(Exception):
    """No new output arrived within the caller's timeout."""


T = TypeVar("T")
Step = PlatformRequest | Pause | StoreFile | ResponseHead | bytes
# The generator receives a PlatformReply, the key of a StoreFile, or None after other steps.
Steps = Generator[Step, Any, T]
