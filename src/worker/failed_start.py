"""What answers in place of a worker that does not start: the same error, to everybody who asks."""

import json
import re
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Any

from worker.errors import StartFailed, WorkerError
from worker.record import JobRecord
from worker.settings.values import says

SETTING = "ANSWER_FAILED_START"
# Seconds without a job after which such a worker ends: jobs that waited come within a second.
QUIET_S = 5.0
# Seconds after which it ends though jobs come: as long as the platform's load balancer lets a
# request wait for a worker. Whoever waited when it failed has been answered by then; it costs no
# more, and takes no more jobs from workers that may be able to do them.
LONGEST_S = 120.0
# Jobs that it takes at once: each is answered as soon as it comes.
AT_ONCE = 100
# Values of one of them: one that has more is not parsed, and is told the same.
MOST_VALUES = 100_000

# Addresses stay, but those of files. In quotes a path may hold anything; elsewhere it ends at a
# space, and at punctuation that no name goes on after.
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


def answers(error: StartFailed, values: Mapping[str, str]) -> bool:
    """Return whether callers are told of a failed start.

    Args:
        error: why it failed.
        values: the settings as text, since they may be what is wrong.
    """
    return error.everywhere and not says(values.get(SETTING), False)


def without_paths(message: str) -> str:
    """Return a message with the last name of each path in it, in place of the path."""
    return _ADDRESS_OR_PATH.sub(_last_name, message)


def _last_name(found: re.Match[str]) -> str:
    name = (found["quoted"] or found["bare"] or "").rstrip("/").rpartition("/")[2]
    return f"…/{name}" if name else found[0]


class FailedStart:
    """Fails every job with the reason of the log; satisfies ``job_loop.loop.Answers``."""

    ready = True

    def __init__(self, error: StartFailed) -> None:
        self.error = StartFailed(without_paths(error.message))

    # An async generator function: the SDK recognises nothing else as a stream.
    async def handle(
        self, job: dict[str, Any], record: JobRecord | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield the failure of a job, whatever it asks for."""
        if record is not None:
            record.status = HTTPStatus(self.error.status)
        body = self.error.body(str(job.get("id", "")))
        yield {"error": json.dumps(body, ensure_ascii=False)}

    def leave(self) -> None:
        """Do nothing: nothing long runs."""

    def end_all(self, error: WorkerError) -> None:
        """Do nothing: every job has its answer already."""
