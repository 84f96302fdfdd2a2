"""Would the worker start? Says so without starting it, and what to change if it would not.

It reads the same variables as a start, asks the hub, and does arithmetic. No engine is started and
no CUDA context is created.
"""

import logging
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from worker import start
from worker.doctor.findings import Finding, Level, failed, render
from worker.errors import SettingsError, WorkerError
from worker.settings import Settings
from worker.settings.environment import export, process_environ
from worker.settings.names import EMBEDDER
from worker.settings.sources import Given, gathered

if TYPE_CHECKING:
    # Imported only once what the hub's library and vLLM read is in the environment.
    from worker.doctor.asking import Asked
    from worker.doctor.model import Model
    from worker.engine.machine import Machine
    from worker.store import Snapshot

# Without these it is not clear which model is meant, or where it lies.
_LOCATING = ("MODEL_NAME", "BASE_PATH", "HF_TOKEN")
# What libraries say of themselves is not what was asked.
_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

# Where a container's limit stands.
_LIMIT = Path("/sys/fs/cgroup/memory.max")


def main() -> int:
    """Print what is found; return 1 if the worker would not start, else 0."""
    # What takes how long is not asked.
    logging.getLogger("worker").setLevel(logging.WARNING)
    findings = list(examine())
    sys.stdout.write(render(findings))
    return int(failed(findings))


def examine() -> Iterator[Finding]:
    """Look at everything, all of it, whatever is found."""
    given = gathered(process_environ())
    asked = _asked(given)
    read, findings = _read()
    yield from findings
    if asked:
        yield from _models(asked, read)


def _read() -> tuple[start.Start | None, list[Finding]]:
    """Read what a start reads, if it can be read; and say what there is to say of it."""
    try:
        read = start.read()
    except SettingsError as error:
        wrong = [Finding(Level.FAIL, "settings", str(each)) for each in error.mistakes]
        return None, [*wrong, *_without_effect(error.warnings)]
    except WorkerError as error:
        return None, [Finding(Level.FAIL, "vLLM", error.message)]
    accepted = Finding(Level.OK, "settings", f"{', '.join(read.heeded)}: accepted")
    return read, [accepted, *_without_effect(read.warnings)]


def _without_effect(warnings: Sequence[str]) -> list[Finding]:
    return [Finding(Level.WARN, "settings", each) for each in warnings]


def _asked(given: Given) -> "Asked | None":
    """Begin to look for the models; not, if it is not clear which."""
    values = {name: given.values[name] for name in _LOCATING if name in given.values}
    try:
        Settings.from_env(values).export()
    except SettingsError:
        return None
    export(_QUIET)
    from worker.doctor.asking import Asked  # noqa: PLC0415 - reads what was just exported

    return Asked(given)


def _models(asked: "Asked", read: start.Start | None) -> Iterator[Finding]:
    from worker.engine.machine import Machine, machine  # noqa: PLC0415 - imports vLLM

    found: list[Model] = []
    on = machine() if read else Machine(cpu=False)
    for prefix, arguments in _engines(read).items():
        topic = "embedder: " if prefix else ""
        for each in _model(asked.result(prefix), arguments, prefix, on, found):
            yield replace(each, topic=topic + each.topic)
    if found:
        from worker.doctor.checks import start_time  # noqa: PLC0415 - likewise

        yield from start_time(found, process_environ())


def _engines(read: start.Start | None) -> dict[str, Namespace | None]:
    if read is None:
        return {"": None, EMBEDDER: None}
    return {"": read.arguments, EMBEDDER: read.embedder}


def _model(
    snapshot: "Snapshot | Finding | None",
    arguments: Namespace | None,
    prefix: str,
    on: "Machine",
    found: "list[Model]",
) -> Iterator[Finding]:
    """Look at one engine's model; add it to those that were found, if it was."""
    from worker.doctor import checks, fit  # noqa: PLC0415 - they import vLLM
    from worker.doctor.model import Model  # noqa: PLC0415 - likewise

    if snapshot is None:
        return
    if isinstance(snapshot, Finding):
        yield snapshot
        return
    yield from checks.origin(snapshot)
    yield from checks.disk(snapshot)
    yield from checks.weights(snapshot, arguments.load_format if arguments else "auto")
    if arguments is None:
        return
    model = Model.of(arguments, snapshot, prefix)
    found.append(model)
    environ = process_environ()
    yield from checks.architecture(model)
    yield from checks.quantization(model)
    yield from fit.parallel(model, on)
    yield from fit.context(model, environ)
    yield from fit.fits(model, on, environ, memory_size())


def memory_size() -> int:
    """Return the bytes of memory that this process may use."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _LIMIT.read_text().strip() if _LIMIT.is_file() else ""
    return min(physical, int(limit)) if limit.isdecimal() else physical
