"""What can be chosen about an emulator."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from emulator.faults import Fault


class FailedAs(StrEnum):
    """The HTTP status an OpenAI client sees when its job failed.

    What the real gateway answers for a FAILED job is not public, so this is a choice. The default
    gives clients the status the worker meant; the others show how a client copes without it.
    """

    ERROR_CODE = "error-code"  # the `code` inside the job's error
    OK = "ok"  # always 200, the error in the body
    SERVER_ERROR = "server-error"  # always 500


class LostAs(StrEnum):
    """What becomes of the jobs of a worker that exited while it ran them.

    What the real platform does, and how soon, is not public, so this is a choice. By default a
    caller learns at once what a developer wants to see.
    """

    FAILED = "failed"
    REQUEUED = "requeued"  # to the front of the queue; what was streamed stays
    LEFT = "left"  # in progress, until their executionTimeout is over


class ExpiredAs(StrEnum):
    """What becomes of a job whose ttl is over before it ended.

    RunPod's documentation says both: that it is TIMED_OUT, and that it is deleted.
    """

    TIMED_OUT = "timed-out"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an emulator behaves; the defaults follow the real platform where that is known."""

    endpoint: str = "local"
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    api_key: str | None = None  # None: callers need none, and any is accepted
    take_poll_s: float = 20.0  # how long job-take and job-stop hold a worker's request
    stream_poll_s: float = 1.0  # how long /stream waits when nothing is there
    runsync_wait_s: float = 90.0  # where the request names no `wait`
    execution_timeout_s: float = 600.0  # where a job's policy says nothing else
    ttl_s: float = 24 * 3600.0  # likewise
    run_retention_s: float = 30 * 60.0  # how long the result of /run is kept
    runsync_retention_s: float = 60.0  # of /runsync and the gateway
    webhook_retry_s: float = 10.0  # between two of a webhook's three attempts
    failed_as: FailedAs = FailedAs.ERROR_CODE
    lost_as: LostAs = LostAs.FAILED
    expired_as: ExpiredAs = ExpiredAs.TIMED_OUT
    # Whether the real gateway cancels is not public; without it, a closed browser tab would keep
    # an engine busy.
    cancel_on_disconnect: bool = True
    # The status for a request above the limits is not public. For a job's result it is 400, which
    # workers' logs show; that a request's is the same is a choice.
    oversize_status: int = 400
    faults: tuple[Fault, ...] = ()  # from the beginning on
    request_log: Path | None = None  # a line of JSON for each request is written to it
