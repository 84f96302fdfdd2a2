"""Answers the jobs of a worker that failed to start: every caller gets the same error."""

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import uuid4

from worker.errors import StartFailed, WorkerError
from worker.record import JobRecord
from worker.settings import Settings
from worker.settings.values import equals_boolean
from worker.volume import WORKER_DIRECTORY

SETTING = "ANSWER_FAILED_START"
# Seconds without a job until a worker that failed to start exits. Queued jobs arrive in a second.
IDLE_TIMEOUT_S = 5.0
# Seconds until a worker that failed to start exits even if jobs arrive. The load balancer lets
# requests wait this long, so all that waited at the failure have been answered. The exit saves
# money, and leaves the next jobs to workers that may be able to run them.
MAX_LIFETIME_S = 120.0
# Number of starts that fail in the same way within these seconds, after which callers are answered,
# whatever the cause is.
MAX_FAILURES = 3
FAILURES_S = 3600.0
# Maximum number of concurrent jobs; each is answered immediately.
CONCURRENCY = 100

# URLs stay, except those of files, and those that transformers makes of a path: the hub's host, and
# the path. A quoted path may contain any character; an unquoted one ends at a space, or at
# punctuation that is not followed by more of a file name.
_ADDRESS_OR_PATH = re.compile(
    r"""
    \bhttps?://[\w.-]+/(?P<address>/[^\s'"`]+)
    | \b(?!file:)\w+://\S+
    | (?<=(?P<quote>['"`])) (?:file:/*(?=/) | ~\w* | \.{1,2})?
      (?P<quoted>/[^'"`\n]+) (?=(?P=quote))
    | (?<![\w./~…]) (?:file:/*(?=/) | ~\w* | \.{1,2})?
      (?P<bare>(?: / [\w.@+~%-]+ (?:[=,:][\w.@+~%-]+)* )+ /?)
    """,
    re.VERBOSE,
)


def should_answer_callers(error: StartFailed, values: Mapping[str, str]) -> bool:
    """Return whether the worker answers callers with the error of a failed start.

    A failure that another machine may not have is recorded; the third one in an hour is answered.

    ``values`` are the settings as unparsed text, since they may be the cause of the failure.
    """
    if equals_boolean(values.get(SETTING), False):
        return False
    return error.affects_all_workers or _record_failure(error, values) >= MAX_FAILURES


def _record_failure(error: StartFailed, values: Mapping[str, str]) -> int:
    """Record a failure as an empty file; return how many with the same message are recent.

    Two failures have the same message if they differ only in paths, numbers and addresses.
    """
    message = re.sub(r"0x[0-9a-f]+|\d+", "#", shorten_paths(error.message))
    folder = _failures_directory(values) / hashlib.sha256(message.encode()).hexdigest()[:16]
    now = time.time()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{now:.0f}-{uuid4().hex}").touch()
        times = [int(path.name.partition("-")[0]) for path in folder.iterdir()]
    except (OSError, ValueError):
        # Without a disk, no failure is known.
        return 0
    return sum(now - time_s < FAILURES_S for time_s in times)


def forget_failures(values: Mapping[str, str]) -> None:
    """Forget the failed starts of the same models, after a start has succeeded."""
    shutil.rmtree(_failures_directory(values), ignore_errors=True)


def _failures_directory(values: Mapping[str, str]) -> Path:
    """Return the directory for failed starts of these models, on the volume if there is one."""
    volume = Path(values.get("BASE_PATH") or Settings.model_fields["base_path"].default)
    root = volume / WORKER_DIRECTORY if volume.is_dir() else Path(tempfile.gettempdir())
    models = "\n".join(values.get(name, "") for name in ("MODEL_NAME", "EMBEDDING_MODEL_NAME"))
    return root / "failed-starts" / hashlib.sha256(models.encode()).hexdigest()[:16]


def shorten_paths(message: str) -> str:
    """Replace each path in a message by an ellipsis and its last component."""
    return _ADDRESS_OR_PATH.sub(_shorten_path, message)


def _shorten_path(match: re.Match[str]) -> str:
    path = match["address"] or match["quoted"] or match["bare"] or ""
    name = path.rstrip("/").rpartition("/")[2]
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
        if record is not None:
            record.status = HTTPStatus(self.error.status)
        body = self.error.body(str(job.get("id", "")))
        yield {"error": json.dumps(body, ensure_ascii=False)}

    def takes_slot(self, _: dict[str, Any]) -> bool:
        return True  # every job is answered immediately

    def stop_long_work(self) -> None:
        """Do nothing: no long work runs."""

    def fail_all_jobs(self, error: WorkerError) -> None:
        """Do nothing: every job has already been answered."""
