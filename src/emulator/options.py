"""Limits of the platform, as RunPod documents them, and the options of an emulator."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from emulator.faults import Fault

_MEGABYTE = 1_000_000  # RunPod's MB may also be 2**20; the smaller value finds more mistakes

MAX_RUN_BYTES = 10 * _MEGABYTE
MAX_RUNSYNC_BYTES = 20 * _MEGABYTE  # also for a job's result, as logs of real workers show
MAX_LOAD_BALANCING_BYTES = 30 * _MEGABYTE  # for a request and for a response
MAX_CHUNK_BYTES = 1 * _MEGABYTE
# The emulator reads bodies up to this size, even if it then rejects them as too large. Otherwise
# clients that are still sending the body would see a reset connection instead of the response.
MAX_READ_BYTES = 64 * _MEGABYTE

WAIT_BOUNDS_MS = (1_000, 300_000)  # the `wait` of /runsync
_WEEK_MS = 7 * 24 * 3600 * 1000
EXECUTION_TIMEOUT_BOUNDS_MS = (5_000, _WEEK_MS)
TTL_BOUNDS_MS = (10_000, _WEEK_MS)

WEBHOOK_ATTEMPTS = 3


class FailedJobHandling(StrEnum):
    """Choice of the HTTP status that an OpenAI client receives when its job failed.

    The status that the real gateway returns for a FAILED job is not public. By default it is the
    status in the worker's error; the other values show how a client copes without this status.
    """

    ERROR_CODE = "error-code"  # the `code` in the job's error
    OK = "ok"  # always 200, with the error in the body
    SERVER_ERROR = "server-error"  # always 500


class LostJobHandling(StrEnum):
    """Handling of jobs whose worker exited while it ran them.

    The behaviour of the real platform and its delay are not public. The default reports the loss to
    a developer immediately.
    """

    FAILED = "failed"
    REQUEUED = "requeued"  # put back to the front of the queue; the job's chunks are not removed
    LEFT = "left"  # in progress until their executionTimeout or ttl is over


class ExpiredJobHandling(StrEnum):
    """Handling of a job whose ttl is over before the job has ended.

    It becomes TIMED_OUT; ``DELETED`` also removes it. RunPod's documentation describes both.
    """

    TIMED_OUT = "timed-out"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class NetworkVolume:
    """A network volume: its id, its data center, and the directory that takes its place."""

    id: str
    data_center: str
    directory: Path

    @property
    def worker_environ(self) -> dict[str, str]:
        return {
            "RUNPOD_VOLUME_ID": self.id,
            "RUNPOD_DC_ID": self.data_center,
            "BASE_PATH": str(self.directory.absolute()),
            "FILES_PATH": "",  # files are on the volume, too
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of an emulator. The defaults follow the real platform where it is documented."""

    endpoint: str = "local"
    host: str = "127.0.0.1"
    port: int = 0  # port for callers; 0 for any free port
    worker_port: int = 0  # port for workers; 0 for any free port
    api_key: str | None = None  # None if callers need no key; any key is accepted then
    long_poll_s: float = 20.0  # timeout of a long poll by a worker (job-take, job-stop)
    stream_poll_s: float = 1.0  # timeout of /stream while there is no new chunk
    runsync_wait_s: float = 90.0  # timeout of /runsync and /status-sync for requests without `wait`
    # Seconds until a caller whose response has not begun gets a 524; the job continues.
    gateway_timeout_s: float = 100.0
    execution_timeout_s: float = 600.0  # for jobs whose policy has no executionTimeout
    ttl_s: float = 24 * 3600.0  # for jobs whose policy has no ttl
    run_retention_s: float = 30 * 60.0  # retention of results of /run
    runsync_retention_s: float = 60.0  # retention of results of /runsync and the gateways
    webhook_retry_delay_s: float = 10.0  # pause between two attempts to post to a webhook
    failed_as: FailedJobHandling = FailedJobHandling.ERROR_CODE
    lost_as: LostJobHandling = LostJobHandling.FAILED
    expired_as: ExpiredJobHandling = ExpiredJobHandling.TIMED_OUT
    # Whether to cancel the job of a gateway's client that hangs up. Whether the real gateway does
    # so is not public. Without it, a closed browser tab would keep an engine busy.
    cancel_on_disconnect: bool = True
    # Status of the response to a job request above a size limit. The real status is not public.
    oversize_status: int = 400
    ping_interval_s: float = 1.0  # pause between two pings of a worker; the real one is not public
    backend_wait_s: float = 120.0  # timeout of the wait for a healthy worker
    affinity_wait_s: float = 300.0  # timeout of the wait if only one worker may answer
    forward_timeout_s: float = 330.0  # timeout of a request that is forwarded to a worker
    faults: tuple[Fault, ...] = ()  # faults that are active from the start
    seed: int = 0  # seed for the faults that apply to a share of the calls
    # Seconds after which a worker without a job is stopped, until jobs wait; None to stop none.
    idle_timeout_s: float | None = None
    volumes: tuple[NetworkVolume, ...] = ()  # each worker gets one, in turn; they share no data
    request_log: Path | None = None  # file to which one line of JSON per request is written

    @property
    def connect_host(self) -> str:
        """Host for connections from this machine: loopback if the emulator binds all addresses."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
