"""Why there will be no adapter, in a sentence for callers: also why a process has crashed."""

import re
import signal

from worker.children import signal_name
from worker.fine_tunes.request import Error
from worker.masking import masked, without_paths

# Characters of what it said last.
LONGEST = 300
# What Python and its libraries say last, but is no reason.
_NOISE = re.compile(r"^\s|^(Traceback|\[rank|.*Warning: )|^$")
_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
_LESS_MEMORY = (
    "Rows with fewer tokens (FINE_TUNE_MAX_LENGTH), a smaller batch_size or a worker with more "
    "memory help."
)


class Failed(Exception):
    """A fine-tune has failed, for the reason that it is to show."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = Error(code=code, message=message, param=param)


def reason_of(status: int | None, said: str) -> str:
    """Return why the process has ended.

    Args:
        status: its own, or below 0 the signal that has ended it; None: not known.
        said: the last of its standard error.
    """
    if status is not None and status < 0:
        text = f"The process that trains was ended by {signal_name(-status)}"
        if -status == signal.SIGKILL:
            text += f", probably because this machine's memory is full. {_LESS_MEMORY}"
            return text
        return f"{text}."
    lines = [line.strip() for line in said.splitlines() if not _NOISE.search(line)]
    last = without_paths(masked(lines[-1]))[:LONGEST] if lines else f"status {status}"
    if _MEMORY.search(last):
        return f"The training needs more memory than there is: {last} {_LESS_MEMORY}"
    return f"The process that trains has crashed: {last}"
