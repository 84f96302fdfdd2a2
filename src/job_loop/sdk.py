"""Access to the SDK (``runpod``): the names that the job loop replaces or uses.

``tests/contract/test_sdk.py`` checks these names. One more replacement for the SDK is in
``worker/process/lifetime.py``.
"""

import logging
from concurrent.futures import Future
from importlib.metadata import version
from pkgutil import resolve_name

from aiohttp import ClientSession

from job_loop.loop import JobHandler, JobLoop, JobsInProgress, LoopLimits
from job_loop.wire import PlatformClient, PlatformUrls

log = logging.getLogger(__name__)

# Header in the requests of a worker whose startup failed. The platform ignores this header. The
# emulator reads it and doesn't count such a worker as ready.
FAILED_START_HEADER = ("X-Worker-Start", "failed")

COMPATIBLE_VERSIONS = "1.10.1 to 2.0.0rc2"

_SCALER_MODULE = "runpod.serverless.modules.rp_scale"
# The SDK creates a scaler with its configuration and starts it. This is the only name that is
# replaced: up to version 2.0, the SDK's scaler sleeps for a second whenever all slots are taken,
# and it gives up a post after three attempts.
_SCALER = f"{_SCALER_MODULE}:JobScaler"
# Function that creates a session with the platform's API key.
_SESSION = "runpod.http_client:AsyncClientSession"
# Set of running jobs that the pings report.
_PROGRESS = "runpod.serverless.modules.worker_state:JobsProgress"
_TAKE_URL = "runpod.serverless.modules.rp_job:JOB_GET_URL"
_STREAM_URL = "runpod.serverless.modules.rp_http:JOB_STREAM_URL"
_DONE_URL = "runpod.serverless.modules.rp_http:JOB_DONE_URL"
REQUIRED_NAMES = (_SCALER, _SESSION, _PROGRESS, _TAKE_URL, _STREAM_URL, _DONE_URL)


def is_compatible() -> bool:
    """Return whether the installed SDK has all required names; log a warning if it doesn't."""
    missing = [name for name in REQUIRED_NAMES if not _has_sdk_name(name)]
    if missing:
        log.warning(
            "runpod %s has no %s, so its own loop runs the jobs: it pauses when all slots are "
            "taken, and loses what it can't post within seconds. runpod %s is known to work.",
            version("runpod"),
            ", ".join(missing),
            COMPATIBLE_VERSIONS,
        )
    return not missing


def replace_scaler(loop: JobLoop) -> None:
    """Make the SDK start this loop instead of its own ``JobScaler``."""
    resolve_name(_SCALER_MODULE).JobScaler = lambda _config: loop


def serve_failed_start(handler: JobHandler, limits: LoopLimits) -> None:
    """Run a job loop that answers jobs on behalf of a worker whose startup failed.

    Return immediately if the SDK is incompatible: the SDK's loop can't detect an empty queue.
    """
    if is_compatible():
        client = PlatformClient(platform_urls(), _create_failed_start_session)
        replace_scaler(JobLoop(handler, client, limits, Future(), reset_jobs_in_progress()))
        resolve_name("runpod.serverless:start")({"handler": handler.handle})


def platform_urls() -> PlatformUrls:
    """Return the platform's URLs, which the SDK has read from the environment."""
    return PlatformUrls(resolve_name(_TAKE_URL), resolve_name(_STREAM_URL), resolve_name(_DONE_URL))


def create_session() -> ClientSession:
    session: ClientSession = resolve_name(_SESSION)()
    return session


def _create_failed_start_session() -> ClientSession:
    session = create_session()
    session.headers.add(*FAILED_START_HEADER)
    return session


def reset_jobs_in_progress() -> JobsInProgress:
    """Clear and return the SDK's set of running jobs."""
    jobs = resolve_name(_PROGRESS)()
    # Before version 1.10.1 this set is a file of the SDK, which may list a killed worker's jobs.
    jobs.clear()
    typed_jobs: JobsInProgress = jobs
    return typed_jobs


def count_jobs_in_progress() -> int:
    """Return the number of jobs that the SDK's own loop still has to deliver; 1 if unknown."""
    return int(resolve_name(_PROGRESS)().get_job_count()) if _has_sdk_name(_PROGRESS) else 1


def _has_sdk_name(name: str) -> bool:
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
