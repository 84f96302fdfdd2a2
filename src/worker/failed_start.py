"""Answers the jobs of a worker that failed to start: every caller gets the same error."""

import json
import re
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Any

from worker.errors import StartFailed, WorkerError
from worker.record import JobRecord
from worker.settings.values import equals_boolean

SETTING = "ANSWER_FAILED_START"
# Seconds without a job until a worker that failed to start exits. Queued jobs arrive in a second.
IDLE_TIMEOUT_S = 5.0
# Seconds until a worker that failed to start exits even if jobs arrive. The load balancer lets
# requests wait this long, so all that waited at the failure have been answered. The exit saves
# money, and leaves the next jobs to workers that may be able to run them.
MAX_LIFETIME_S = 120.0
# Maximum number of concurrent jobs; each is answered immediately.
CONCURRENCY = 100

# URLs stay, except those of files. A quoted path may contain any character; an unquoted one ends at
# a space, or at punctuation that is not followed by more of a file name.
_ADDRESS_OR_PATH = re.compile(
    r"""
    \b(?!file:)\w+://\S+
    | (?<=(?P<quote>['"`])) (?:file:/*(?=/) | ~\w* | \.{1,2})?
      (?P<quoted>/[^'"`\n]+) (?=(?P=quote))
    | (?<![\w./~…]) (?:file:/*(?=/) | ~\w* | \.{1,2})?
      (?P<bare>(?: / [\w.@+~%-]+ (?:[=,:][\w.@+~%-]+)* )+ /?)
    """,
    re.VERBOSE,
)


def should_answer_callers(error: StartFailed, values: Mapping[str, str]) -> bool:
    """Return whether the worker answers callers with the error of a failed start.

    Args:
        error: The error of the start.
        values: The settings as unparsed text, since they may be the cause of the failure.
    """
    return error.affects_all_workers and not equals_boolean(values.get(SETTING), False)


def shorten_paths(message: str) -> str:
    """Replace each path in a message by an ellipsis and its last component."""
    return _ADDRESS_OR_PATH.sub(_shorten_path, message)


def _shorten_path(match: re.Match[str]) -> str:
    name = (match["quoted"] or match["bare"] or "").rstrip("/").rpartition("/")[2]
    return f"…/{name}" if name else match[0]


class FailedStartHandler:
    """Fails every job with the error of the start; implements ``job_loop.loop.JobHandler``."""

    ready = True

    def __init__(self, error: StartFailed) -> None:
        self.error = StartFailed(shorten_paths(error.message))

    # This must be an async generator function: the SDK streams nothing else.
    async def handle(
        self, job: dict[str, Any], record: JobRecord | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield the failure of a job, whatever its input is."""
        if record is not None:
            record.status = HTTPStatus(self.error.status)
        body = self.error.body(str(job.get("id", "")))
        yield {"error": json.dumps(body, ensure_ascii=False)}

    def takes_slot(self, _: dict[str, Any]) -> bool:
        """Return True: every job is answered immediately."""
        return True

    def stop_long_work(self) -> None:
        """Do nothing: no long work runs."""

    def fail_all_jobs(self, error: WorkerError) -> None:
        """Do nothing: every job has already been answered."""
