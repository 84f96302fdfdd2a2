"""Examines the engines that settings make: their files, their models, and their memory."""

from collections.abc import Callable, Iterator

from worker.doctor import checks, this_machine
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding
from worker.doctor.lookups import Lookups, check_part
from worker.doctor.memory import Judge
from worker.doctor.rehearsal import rehearse
from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine, cpu_memory
from worker.engine.start import Start
from worker.engine.start.needs import wanted_by_arguments
from worker.settings.environment import process_environ
from worker.settings.names import EMBEDDER
from worker.store import Snapshot

# Judges the GPUs that were asked for, in place of the memory of this machine.
Judges = Callable[[Judge], Iterator[Finding]]


def examine(lookups: Lookups, start: Start | None, judges: Judges | None) -> Iterator[Finding]:
    """Check all engines, and yield the findings.

    Args:
        lookups: begun with the models.
        start: what the settings say; None if they are wrong.
        judges: says whether the models fit, if they are not to run on this machine.
    """
    engines = {engine.prefix: engine for engine in start.engines} if start else {}
    parts = {prefix: wanted_by_arguments(engine)[1:] for prefix, engine in engines.items()}
    for part in (one for some in parts.values() for one in some):
        lookups.begin(part)
    models = []
    for prefix in ("", EMBEDDER):
        engine = engines.get(prefix)
        found = lookups.model(prefix, engine)
        besides = {part: lookups.result(part) for part in parts.get(prefix, ())}
        findings = [*_files(found, engine)]
        if start and engine and isinstance(found, Snapshot):
            on = start.context.machine
            gpu = on.gpus[0] if judges else None
            prompt = start.settings.system_prompt
            candidate = Candidate.of(engine, found)
            model, refused = rehearse(candidate, besides, start.context, prompt, gpu)
            models.append(model)
            # Without what was refused the rest of the topic is of no interest.
            over = {finding.topic for finding in refused}
            judged = _checks(model, on)
            findings += [*refused, *(one for one in judged if one.topic not in over)]
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


def _files(found: Snapshot | Finding | None, engine: EngineArguments | None) -> Iterator[Finding]:
    """Check a model's files."""
    if isinstance(found, Finding):
        yield found
    elif found:
        yield from checks.origin(found)
        yield from checks.disk(found)
        yield from checks.weights(found, engine.vllm.load_format if engine else "auto")


def _checks(model: Candidate, on: Machine) -> Iterator[Finding]:
    """Check an engine against its model, and against the machine but for its memory."""
    yield from checks.architecture(model)
    yield from checks.configuration(model)
    yield from checks.quantization(model)
    yield from checks.parsers(model)
    yield from checks.parallel(on)
    yield from checks.context(model)
