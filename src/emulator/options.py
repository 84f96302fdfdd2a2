"""The limits of the platform, as RunPod documents them, and the options of an emulator."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from emulator.faults import Fault

_MEGABYTE = 1_000_000  # 2**20 is as likely; the smaller one finds more mistakes

RUN_BYTES = 10 * _MEGABYTE
RUNSYNC_BYTES = 20 * _MEGABYTE  # of a result, too, as workers' logs show
BALANCED_BYTES = 30 * _MEGABYTE  # of load balancing endpoints: of a request, and of a response
CHUNK_BYTES = 1 * _MEGABYTE
# Larger bodies are read up to here before they are refused, or clients would not see the answer.
READ_BYTES = 64 * _MEGABYTE

WAIT_MS = (1_000, 300_000)  # the `wait` of /runsync
_WEEK_MS = 7 * 24 * 3600 * 1000
EXECUTION_TIMEOUT_MS = (5_000, _WEEK_MS)
TTL_MS = (10_000, _WEEK_MS)

WEBHOOK_ATTEMPTS = 3


class FailedAs(StrEnum):
    """The HTTP status an OpenAI client sees when its job failed.

    What the real gateway answers for a FAILED job is not public. The default passes on the status
    that the worker meant; the others show how a client copes without it.
    """

    ERROR_CODE = "error-code"  # the `code` inside the job's error
    OK = "ok"  # always 200, the error in the body
    SERVER_ERROR = "server-error"  # always 500


class LostAs(StrEnum):
    """What becomes of the jobs of a worker that exited while it ran them.

    What the real platform does, and how soon, is not public. The default shows a developer at once
    what happened.
    """

    FAILED = "failed"
    REQUEUED = "requeued"  # to the front of the queue; what was streamed stays
    LEFT = "left"  # in progress, until their executionTimeout is over


class ExpiredAs(StrEnum):
    """What becomes of a job whose ttl ends before the job does.

    RunPod's documentation says both.
    """

    TIMED_OUT = "timed-out"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an emulator behaves. The defaults follow the real platform where it is documented."""

    endpoint: str = "local"
    host: str = "127.0.0.1"
    port: int = 0  # for callers; 0: any free one
    worker_port: int = 0  # for workers; likewise
    api_key: str | None = None  # None: callers need none, and any is accepted
    take_poll_s: float = 20.0  # how long job-take and job-stop hold a worker's request
    stream_poll_s: float = 1.0  # how long /stream waits for a chunk
    runsync_wait_s: float = 90.0  # for requests without `wait`
    execution_timeout_s: float = 600.0  # for jobs whose policy has none
    ttl_s: float = 24 * 3600.0  # likewise
    run_retention_s: float = 30 * 60.0  # how long the result of /run is kept
    runsync_retention_s: float = 60.0  # how long those of /runsync and the gateway are kept
    webhook_retry_s: float = 10.0  # between two attempts
    failed_as: FailedAs = FailedAs.ERROR_CODE
    lost_as: LostAs = LostAs.FAILED
    expired_as: ExpiredAs = ExpiredAs.TIMED_OUT
    # Whether the real gateway cancels is not public. Without it, a closed browser tab would keep
    # an engine busy.
    cancel_on_disconnect: bool = True
    # For requests above the limits. The real one is not public; for a job's result it is 400, as
    # workers' logs show.
    oversize_status: int = 400
    # Of load balancing endpoints. How often the platform pings is not public.
    ping_s: float = 1.0
    balanced_wait_s: float = 120.0  # for a healthy worker
    strict_wait_s: float = 300.0  # for the one that a request insists on
    processing_s: float = 330.0  # of a request
    faults: tuple[Fault, ...] = ()  # active from the start
    seed: int = 0  # of the draws of faults that concern a share of the calls
    request_log: Path | None = None  # a file: one line of JSON per request

    @property
    def address(self) -> str:
        """The host that programs of this machine call; the one for all addresses is none itself."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
