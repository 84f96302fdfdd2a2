"""Trains, or only checks the rows: ``python -m trainer DIR ATTEMPT [--check]``."""

import sys
import traceback
from pathlib import Path
from types import TracebackType

from trainer.interruptions import SigtermWatcher
from worker.fine_tunes.spec import CHECK_OPTION


def main(directory: str, attempt: str, *options: str) -> int:
    watcher = SigtermWatcher()
    watcher.watch()
    # Imported after the signal handler is installed: SIGTERM may arrive during the long import.
    from trainer.attempt import run_attempt  # noqa: PLC0415 - see above

    return run_attempt(Path(directory), attempt, watcher, only_check=CHECK_OPTION in options)


def print_crash(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
    """Print a crash's traceback, and the error's type and first line in one last line."""
    traceback.print_exception(kind, error, tb)
    reason = next(iter(str(error).splitlines()), "")
    sys.stderr.write(f"{kind.__name__}: {reason}\n")


if __name__ == "__main__":
    sys.excepthook = print_crash
    if len(sys.argv) < 3 or sys.argv[3:] not in ([], [CHECK_OPTION]):
        sys.exit(f"python -m trainer DIR ATTEMPT [{CHECK_OPTION}]")
    sys.exit(main(*sys.argv[1:]))
