"""The names of the SDK that the loop replaces or uses; ``tests/contract/test_sdk.py`` has them.

What else is replaced for the SDK is in ``worker/process/processor.py``.
"""

import logging
from concurrent.futures import Future
from importlib.metadata import version
from pkgutil import resolve_name

from aiohttp import ClientSession, TraceConfig

from job_loop.loop import Answers, InProgress, JobLoop, Limits
from job_loop.wire import Urls, Wire

log = logging.getLogger(__name__)

# Stands in the requests of a worker whose start failed. The platform does not read it; the local
# endpoint does not take such a worker for a ready one.
START_FAILED = ("X-Worker-Start", "failed")

KNOWN_TO_WORK = "1.10.1 to 1.12.0"

_SCALE = "runpod.serverless.modules.rp_scale"
# Replaced, the only one: the SDK makes one with its configuration, and starts it. Its own, up to
# 1.12, sleeps for a second whenever all slots are taken, and gives up a post after three attempts.
_SCALER = f"{_SCALE}:JobScaler"
# Makes a session with the platform's key.
_SESSION = "runpod.http_client:AsyncClientSession"
# The pings name the jobs in it.
_PROGRESS = "runpod.serverless.modules.worker_state:JobsProgress"
_TAKE_URL = "runpod.serverless.modules.rp_job:JOB_GET_URL"
_STREAM_URL = "runpod.serverless.modules.rp_http:JOB_STREAM_URL"
_DONE_URL = "runpod.serverless.modules.rp_http:JOB_DONE_URL"
NAMES = (_SCALER, _SESSION, _PROGRESS, _TAKE_URL, _STREAM_URL, _DONE_URL)


def fits() -> bool:
    """Return whether the installed SDK has all the names; log what follows if it does not."""
    missing = [name for name in NAMES if not _has(name)]
    if missing:
        log.warning(
            "runpod %s has no %s, so its own loop runs the jobs: it pauses when all slots are "
            "taken, and loses what it can't post within seconds. runpod %s is known to work.",
            version("runpod"),
            ", ".join(missing),
            KNOWN_TO_WORK,
        )
    return not missing


def install(loop: JobLoop) -> None:
    """Make the SDK start this loop in place of its own."""
    resolve_name(_SCALE).JobScaler = lambda _config: loop


def answer_for_a_while(answers: Answers, limits: Limits) -> None:
    """Let something else than a worker answer the jobs, until the limits end it.

    Nothing happens with an SDK that lacks a name: its own loop can't tell when the queue is empty.
    """
    if fits():
        wire = Wire(urls(), _session_of_failed_start)
        install(JobLoop(answers, wire, limits, Future(), in_progress()))
        resolve_name("runpod.serverless:start")({"handler": answers.handle})


def urls() -> Urls:
    """Return the platform's addresses, which the SDK has read from the environment."""
    return Urls(resolve_name(_TAKE_URL), resolve_name(_STREAM_URL), resolve_name(_DONE_URL))


def session(trace: TraceConfig) -> ClientSession:
    made: ClientSession = resolve_name(_SESSION)(trace_configs=[trace])
    return made


def _session_of_failed_start(trace: TraceConfig) -> ClientSession:
    made = session(trace)
    made.headers.add(*START_FAILED)
    return made


def in_progress() -> InProgress:
    """Return the SDK's set of jobs in progress, empty."""
    jobs = resolve_name(_PROGRESS)()
    # Before 1.10.1 it is kept in a file, with the jobs of a worker that was killed there.
    jobs.clear()
    made: InProgress = jobs
    return made


def jobs_in_progress() -> int:
    """Return how many jobs the SDK's own loop has not delivered yet; 1 if it can't say."""
    return int(resolve_name(_PROGRESS)().get_job_count()) if _has(_PROGRESS) else 1


def _has(name: str) -> bool:
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
