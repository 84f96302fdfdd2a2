"""``python -m trainer DIR ATTEMPT [--check]``: trains, or only checks the rows (see ``spec``)."""

import sys
import traceback
from pathlib import Path
from types import TracebackType

from trainer.endings import Interruptions
from trainer.spec import ONLY_CHECK


def main(directory: str, attempt: str, *options: str) -> int:
    """Train; return how the process ends."""
    interruptions = Interruptions()
    interruptions.watch()
    # Imported once signals are watched: it takes a while, and the process may be asked to end.
    from trainer.attempt import run  # noqa: PLC0415 - see above

    return run(Path(directory), attempt, interruptions, only_check=ONLY_CHECK in options)


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write a crash to standard error, with its reason in the last line."""
    traceback.print_exception(kind, error, trace)
    reason = next(iter(str(error).splitlines()), "")
    sys.stderr.write(f"{kind.__name__}: {reason}\n")


if __name__ == "__main__":
    sys.excepthook = _print
    if len(sys.argv) < 3 or sys.argv[3:] not in ([], [ONLY_CHECK]):
        sys.exit(f"python -m trainer DIR ATTEMPT [{ONLY_CHECK}]")
    sys.exit(main(*sys.argv[1:]))
