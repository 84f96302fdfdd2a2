"""Examines the engines that the settings configure: their files, their models and their memory."""

from collections.abc import Callable, Iterator
from itertools import chain

from worker.doctor import checks, this_machine
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding
from worker.doctor.lookups import Lookups, check_part
from worker.doctor.memory import GpuJudge
from worker.doctor.rehearsal import rehearse
from worker.engine.machine import cpu_memory
from worker.engine.start import StartupPlan
from worker.engine.start.needs import artifacts_in_arguments
from worker.settings.environment import process_environ
from worker.store import Snapshot

# Function that judges the GPUs of ``--gpu``, instead of checking the memory of this machine.
JudgeGpus = Callable[[GpuJudge], Iterator[Finding]]


def examine(
    lookups: Lookups, start: StartupPlan | None, judge_gpus: JudgeGpus | None
) -> Iterator[Finding]:
    """Check all engines, and yield the findings.

    ``start=None`` means that the settings are invalid; then only the models' files are checked.
    """
    engines = {engine.prefix: engine for engine in start.engines} if start else {}
    # Engines may use models other than those that the variables name.
    artifacts = {prefix: [model] for prefix, model in lookups.models.items()}
    artifacts |= {prefix: artifacts_in_arguments(engine) for prefix, engine in engines.items()}
    for artifact in chain.from_iterable(artifacts.values()):
        lookups.start(artifact)
    models = []
    for prefix, (model_artifact, *parts) in artifacts.items():
        engine = engines.get(prefix)
        model_result = lookups.result(model_artifact)
        part_results = {part: lookups.result(part) for part in parts}
        findings = [model_result] if isinstance(model_result, Finding) else []
        if isinstance(model_result, Snapshot):
            load_format = engine.vllm_args.load_format if engine else "auto"
            findings += [*checks.origin(model_result), *checks.disk(model_result)]
            findings += checks.weights(model_result, load_format)
            if start and engine:
                model, judged = _examine_model(
                    Candidate.from_snapshot(engine, model_result, part_results), start, judge_gpus
                )
                models.append(model)
                findings += judged
        if engine:
            findings += [check_part(part, result, engine) for part, result in part_results.items()]
        yield from (finding.for_engine(prefix) for finding in findings)
    if not (start and models):
        return
    if all(model.is_served for model in models):
        min_model_len = start.settings.min_model_len
        yield from (
            judge_gpus(GpuJudge(models, min_model_len))
            if judge_gpus
            else this_machine.check(models, start.context.machine, min_model_len, cpu_memory())
        )
    yield from checks.start_time(models, process_environ())


def _examine_model(
    model: Candidate, start: StartupPlan, judge_gpus: JudgeGpus | None
) -> tuple[Candidate, list[Finding]]:
    """Rehearse an engine's startup, and run the other checks except the memory check."""
    gpu = start.context.machine.gpus[0] if judge_gpus else None
    model, refused = rehearse(model, start.context, start.settings.system_prompt, gpu)
    # Omit further findings on a topic with a refusal.
    refused_topics = {finding.topic for finding in refused}
    checked = (one for check in checks.MODEL_CHECKS for one in check(model))
    return model, [*refused, *(one for one in checked if one.topic not in refused_topics)]
