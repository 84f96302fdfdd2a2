"""Would the worker start? Says so without starting it, and what to change if it would not.

It reads the same variables as a start, asks the hub, and does arithmetic. No engine is started and
no CUDA context is created.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from worker import start
from worker.doctor.findings import Finding, Level, failed, render
from worker.engine.arguments import EngineArguments
from worker.errors import SettingsError, WorkerError
from worker.settings.environment import export, process_environ
from worker.settings.names import EMBEDDER
from worker.settings.sources import gather
from worker.start.bootstrap import Bootstrap

if TYPE_CHECKING:
    # Imported only once what the hub's library and vLLM read is in the environment.
    from worker.doctor.asking import Asked
    from worker.doctor.model import Model
    from worker.engine.machine import Machine
    from worker.store import Snapshot

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


@dataclass(frozen=True)
class _Read:
    """What a start would read, and what there is to say of it.

    Without the settings that are wrong, if there are any; ``start`` is None if nothing is left.
    """

    start: start.Start | None
    environ: Mapping[str, str]
    findings: list[Finding]


def examine() -> Iterator[Finding]:
    """Look at everything, all of it, whatever is found."""
    bootstrap = Bootstrap.of(gather(process_environ()))
    asked = _asked(bootstrap)
    read = _read(bootstrap)
    yield from read.findings
    if isinstance(asked, Finding):
        yield asked
    elif asked:
        yield from _models(asked, read)


def _read(bootstrap: Bootstrap) -> _Read:
    environ = process_environ()
    try:
        read = start.read(bootstrap)
    except SettingsError as error:
        return _without(error)
    except WorkerError as error:
        return _Read(None, environ, [Finding(Level.FAIL, "vLLM", error.message)])
    accepted = Finding(Level.OK, "settings", f"{', '.join(read.accepted)}: accepted")
    return _Read(read, environ, [accepted, *_without_effect(read.warnings)])


def _without(error: SettingsError) -> _Read:
    """Tell what is wrong, and read the rest as if that were not set."""
    wrong = [Finding(Level.FAIL, "settings", str(each)) for each in error.mistakes]
    # What was made of several variables is named by all of them.
    names = {name for each in error.mistakes for name in each.name.split(", ")}
    rest = {name: value for name, value in process_environ().items() if name not in names}
    read = None
    # An import that failed is not tried again: what is left of it would only confuse.
    if "worker.engine.options" in sys.modules:
        with contextlib.suppress(WorkerError):
            read = start.read(Bootstrap.of(gather(rest)))
    if read:
        told = f"{wrong[-1].text}\nwhat follows is judged without {', '.join(sorted(names))}"
        wrong[-1] = replace(wrong[-1], text=told)
    return _Read(read, rest, [*wrong, *_without_effect(error.warnings)])


def _without_effect(warnings: Sequence[str]) -> list[Finding]:
    return [Finding(Level.WARN, "settings", each) for each in warnings]


def _asked(bootstrap: Bootstrap) -> "Asked | Finding | None":
    """Begin to look for the models; not, if it is not clear which, or there is no way to."""
    if bootstrap.settings is None:
        return None
    export(_QUIET)
    try:
        from worker.doctor.asking import Asked  # noqa: PLC0415 - reads what was just exported
    except ValueError as error:
        text = f"the hub's library can't be imported: {error}"
        return Finding(Level.FAIL, "hub", text, "mend HF_ENDPOINT, or what else is set for it")
    return Asked(bootstrap.given)


def _models(asked: "Asked", read: _Read) -> Iterator[Finding]:
    # They import vLLM.
    from worker.doctor import checks, fit  # noqa: PLC0415 - see above
    from worker.doctor.parts import judged, parts  # noqa: PLC0415 - see above
    from worker.engine.machine import Machine, this_machine  # noqa: PLC0415 - see above

    found: list[Model] = []
    on = this_machine() if read.start else Machine(cpu=False)
    engines = _engines(read.start)
    beside = {prefix: parts(each) if each else [] for prefix, each in engines.items()}
    for part in chain(*beside.values()):
        asked.begin(part.wanted)
    for prefix, arguments in engines.items():
        topic = "embedder: " if prefix else ""
        snapshot = asked.model(prefix, arguments)
        for each in _model(snapshot, arguments, prefix, on, read.environ, found):
            yield replace(each, topic=topic + each.topic)
        for part in beside[prefix]:
            judgement = judged(part, asked.result(part.wanted))
            yield replace(judgement, topic=topic + judgement.topic)
    if found:
        yield from fit.together(found, on, read.environ, memory_size())
        yield from checks.start_time(found, read.environ)


def _engines(read: start.Start | None) -> dict[str, EngineArguments | None]:
    if read is None:
        return {"": None, EMBEDDER: None}
    return {"": read.arguments, EMBEDDER: read.embedder}


def _model(
    snapshot: "Snapshot | Finding | None",
    arguments: EngineArguments | None,
    prefix: str,
    on: "Machine",
    environ: Mapping[str, str],
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
    yield from checks.weights(snapshot, arguments.vllm.load_format if arguments else "auto")
    if arguments is None:
        return
    model = Model.of(arguments, snapshot, prefix)
    found.append(model)
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
