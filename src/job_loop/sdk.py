"""The names of the SDK that the loop replaces or uses; ``tests/contract/test_sdk.py`` has them."""

import logging
from importlib.metadata import version

from aiohttp import ClientSession, TraceConfig
from runpod import http_client
from runpod.serverless.modules import rp_http, rp_job, rp_scale, worker_state

from job_loop.loop import InProgress, JobLoop
from job_loop.wire import Urls

log = logging.getLogger(__name__)

KNOWN_TO_WORK = "1.12.0"

NAMES = (
    (rp_scale, "JobScaler"),  # replaced: made by the SDK with its configuration, then started
    (http_client, "AsyncClientSession"),  # has the platform's key
    (worker_state, "JobsProgress"),  # the pings name the jobs in it
    (rp_job, "JOB_GET_URL"),
    (rp_http, "JOB_STREAM_URL"),
    (rp_http, "JOB_DONE_URL"),
)


def fits() -> bool:
    """Return whether the installed SDK has all the names; log what follows if it does not."""
    missing = [f"{module.__name__}.{name}" for module, name in NAMES if not hasattr(module, name)]
    if missing:
        log.warning(
            "runpod %s has no %s, so its own loop runs the jobs: it pauses when all places are "
            "taken, and loses what it can't post within seconds. runpod %s is known to work.",
            version("runpod"),
            ", ".join(missing),
            KNOWN_TO_WORK,
        )
    return not missing


def install(loop: JobLoop) -> None:
    """Make the SDK start this loop in place of its own."""
    rp_scale.JobScaler = lambda _config: loop


def urls() -> Urls:
    """Return the platform's addresses, which the SDK has read from the environment."""
    return Urls(rp_job.JOB_GET_URL, rp_http.JOB_STREAM_URL, rp_http.JOB_DONE_URL)


def session(trace: TraceConfig) -> ClientSession:
    made: ClientSession = http_client.AsyncClientSession(trace_configs=[trace])
    return made


def in_progress() -> InProgress:
    jobs: InProgress = worker_state.JobsProgress()
    return jobs


def jobs_in_progress() -> int:
    """Return how many jobs are not delivered yet, whichever loop runs them."""
    return int(worker_state.JobsProgress().get_job_count())
