"""Checks whether the worker would start, without starting it, and what to change if it would not.

It reads the same variables as a start, asks the hub and vLLM about the models, and does arithmetic.
No engine is started, and no weights are downloaded.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from worker.doctor.findings import Finding, Level, failed, render
from worker.engine import start
from worker.engine.start import Bootstrap
from worker.errors import WorkerError
from worker.settings.environment import export, remove
from worker.settings.mistakes import SettingsError
from worker.settings.sources import Given

if TYPE_CHECKING:
    # Imported only once what the hub's library and vLLM read is in the environment.
    from worker.doctor.engines import Judges
    from worker.engine.machine import Machine

# For libraries, whose own messages would stand between the findings.
_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TORCH_LOGS": "-all",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
}


def main(given: Given, gpu: str = "", prices: str = "") -> int:
    """Print the findings; return 1 if the worker would not start, else 0.

    With ``gpu`` such GPUs are judged in place of this machine's, and ``prices`` may name a file of
    what they cost an hour.

    Raises:
        StartFailed: there are no such GPUs, or the file of prices is wrong.
    """
    # Without the log of a start's phases, and with vLLM's refusals as findings only.
    logging.getLogger("worker").setLevel(logging.WARNING)
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    if gpu:
        from worker.doctor.gpus import report  # noqa: PLC0415 - it is rarely needed

        return report.main(given, gpu, Path(prices) if prices else None)
    findings = list(examine(given))
    sys.stdout.write(render(findings))
    return int(failed(findings))


def examine(
    given: Given, on: "Machine | None" = None, judges: "Judges | None" = None
) -> Iterator[Finding]:
    """Check everything, and yield all findings.

    ``judges`` says whether the models fit on another machine than this one.
    """
    bootstrap = Bootstrap.of(given)
    lookups, of_hub = None, list[Finding]()
    if bootstrap.settings:
        export(_QUIET)
        try:
            from worker.doctor.lookups import Lookups  # noqa: PLC0415 - reads what was exported
        except ValueError as error:
            text = f"the hub's library can't be imported: {error}"
            change = "mend HF_ENDPOINT, or what else is set for it"
            of_hub = [Finding(Level.FAIL, "hub", text, change)]
        else:
            lookups = Lookups(given)
    read, findings = _read(bootstrap, on)
    yield from [*findings, *of_hub]
    if lookups and _imported():
        from worker.doctor import engines  # noqa: PLC0415 - it imports vLLM

        yield from engines.examine(lookups, read, judges)


def _read(bootstrap: Bootstrap, on: "Machine | None") -> tuple[start.Start | None, list[Finding]]:
    """Return what a start reads, or None if it can read nothing, and findings on the settings."""
    try:
        read = start.read(bootstrap, on)
    except SettingsError as error:
        return _without_mistakes(bootstrap.given, error, on)
    except WorkerError as error:
        return None, [Finding(Level.FAIL, "vLLM", error.message)]
    accepted = Finding(Level.OK, "settings", f"{', '.join(read.accepted)}: accepted")
    return read, [accepted, *_warnings(read.warnings)]


def _without_mistakes(
    given: Given, error: SettingsError, on: "Machine | None"
) -> tuple[start.Start | None, list[Finding]]:
    """Report the mistakes, and read the rest as if those settings were not set."""
    wrong = [Finding(Level.FAIL, "settings", str(mistake)) for mistake in error.mistakes]
    # A setting that is made of several variables has the names of all of them.
    names = {name for mistake in error.mistakes for name in mistake.name.split(", ")}
    for name in names:
        # vLLM reads some of them itself.
        remove(name)
    read = None
    if _imported():
        with contextlib.suppress(WorkerError):
            read = start.read(Bootstrap.of(given.without(names)), on)
    if read:
        text = f"{wrong[-1].text}\nwhat follows is judged without {', '.join(sorted(names))}"
        wrong[-1] = replace(wrong[-1], text=text)
    return read, [*wrong, *_warnings(error.warnings)]


def _imported() -> bool:
    """Return whether vLLM is imported: a failed import leaves modules that confuse a second one."""
    return "worker.engine.options" in sys.modules


def _warnings(texts: Sequence[str]) -> list[Finding]:
    return [Finding(Level.WARN, "settings", text) for text in texts]
