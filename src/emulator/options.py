"""What can be chosen about an emulator."""

from dataclasses import dataclass
from enum import Enum


class FailedAs(Enum):
    """The HTTP status an OpenAI client sees when its job failed.

    What the real gateway answers for a FAILED job is not public, so this is a choice. The default
    gives clients the status the worker meant; the others show how a client copes without it.
    """

    ERROR_CODE = "error-code"  # the `code` inside the job's error
    OK = "ok"  # always 200, the error in the body
    SERVER_ERROR = "server-error"  # always 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an emulator behaves; the defaults follow the real platform where that is known."""

    endpoint: str = "local"
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    take_poll_s: float = 20.0  # how long job-take and job-stop hold a worker's request
    stream_poll_s: float = 1.0  # how long /stream waits when nothing is there
    runsync_wait_s: float = 90.0  # where the request names no `wait`
    post_delay_s: float = 0.0  # before a worker's POST is answered: a slow link
    failed_as: FailedAs = FailedAs.ERROR_CODE
    # Whether the real gateway cancels is not public either; without it, a closed browser tab
    # would keep an engine busy.
    cancel_on_disconnect: bool = True
