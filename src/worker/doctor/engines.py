"""Examines the engines that settings make: their files, their models, and their memory."""

from collections.abc import Callable, Iterator
from itertools import chain

from worker.doctor import checks, this_machine
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding
from worker.doctor.lookups import Lookups, check_part
from worker.doctor.memory import Judge
from worker.doctor.rehearsal import rehearse
from worker.engine.machine import cpu_memory
from worker.engine.start import Start
from worker.engine.start.needs import wanted_by_arguments
from worker.settings.environment import process_environ
from worker.store import Snapshot

# Judges the GPUs that were asked for, in place of the memory of this machine.
Judges = Callable[[Judge], Iterator[Finding]]


def examine(lookups: Lookups, start: Start | None, judges: Judges | None) -> Iterator[Finding]:
    """Check all engines, and yield the findings.

    ``start`` is None if the settings are wrong: then only the models' files are checked.
    """
    engines = {engine.prefix: engine for engine in start.engines} if start else {}
    # Engines may have other models than the variables name.
    wanted = {prefix: [model] for prefix, model in lookups.models.items()}
    wanted |= {prefix: wanted_by_arguments(engine) for prefix, engine in engines.items()}
    for one in chain.from_iterable(wanted.values()):
        lookups.begin(one)
    models = []
    for prefix, (named, *parts) in wanted.items():
        engine = engines.get(prefix)
        found = lookups.result(named)
        besides = {part: lookups.result(part) for part in parts}
        findings = [found] if isinstance(found, Finding) else []
        if isinstance(found, Snapshot):
            load_format = engine.vllm.load_format if engine else "auto"
            findings += [*checks.origin(found), *checks.disk(found)]
            findings += checks.weights(found, load_format)
            if start and engine:
                model, judged = _model(Candidate.of(engine, found, besides), start, judges)
                models.append(model)
                findings += judged
        if engine:
            findings += [check_part(part, found, engine) for part, found in besides.items()]
        yield from (finding.of_engine(prefix) for finding in findings)
    if not (start and models):
        return
    if all(model.served for model in models):
        floor = start.settings.min_model_len
        yield from (
            judges(Judge(models, floor))
            if judges
            else this_machine.check(models, start.context.machine, floor, cpu_memory())
        )
    yield from checks.start_time(models, process_environ())


def _model(
    model: Candidate, start: Start, judges: Judges | None
) -> tuple[Candidate, list[Finding]]:
    """Rehearse an engine's start, and check what that does not refuse, but for the memory."""
    gpu = start.context.machine.gpus[0] if judges else None
    model, refused = rehearse(model, start.context, start.settings.system_prompt, gpu)
    # Without what was refused the rest of the topic is of no interest.
    over = {finding.topic for finding in refused}
    checked = (one for check in checks.OF_MODEL for one in check(model))
    return model, [*refused, *(one for one in checked if one.topic not in over)]
