"""Checks the engines that the settings configure: their files, their models and their memory."""

from collections.abc import Callable, Iterator
from itertools import chain

from worker.doctor import checks, this_machine
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding
from worker.doctor.lookups import Lookups, check_artifact
from worker.doctor.memory import GpuJudge
from worker.doctor.rehearsal import rehearse_startup
from worker.engine.machine import engine_ram_limit
from worker.engine.start import StartupPlan
from worker.engine.start.needs import artifacts_in_arguments
from worker.settings.environment import process_environ
from worker.store import Snapshot

# Function that yields findings on the GPUs of ``--gpu``, in place of this machine's memory check.
JudgeGpus = Callable[[GpuJudge], Iterator[Finding]]


def check_engines(
    lookups: Lookups, plan: StartupPlan | None, judge: JudgeGpus | None
) -> Iterator[Finding]:
    """Check all engines, and yield the findings.

    If invalid settings prevent a plan, only the models' files are checked.
    """
    engines = {engine.prefix: engine for engine in plan.engines} if plan else {}
    # The planned engines may use models other than those that the settings name.
    artifacts = {prefix: [model] for prefix, model in lookups.models.items()}
    artifacts |= {prefix: artifacts_in_arguments(engine) for prefix, engine in engines.items()}
    for artifact in chain.from_iterable(artifacts.values()):
        lookups.start_lookup(artifact)
    models = []
    for prefix, (model_artifact, *other_artifacts) in artifacts.items():
        engine = engines.get(prefix)
        result = lookups.wait_for_result(model_artifact)
        parts = {part: lookups.wait_for_result(part) for part in other_artifacts}
        findings = [result] if isinstance(result, Finding) else []
        if isinstance(result, Snapshot):
            load_format = engine.vllm_args.load_format if engine else "auto"
            findings += [*checks.report_origin(result), *checks.check_disk_space(result)]
            findings += checks.check_weights(result, load_format)
            if plan and engine:
                candidate = Candidate.from_snapshot(engine, result, parts)
                model, judged = _rehearse_and_check(candidate, plan, judge)
                models.append(model)
                findings += judged
        if engine:
            findings += [check_artifact(part, result, engine) for part, result in parts.items()]
        yield from (finding.with_engine_prefix(prefix) for finding in findings)
    if not (plan and models):
        return
    if all(model.has_route for model in models):
        min_len, machine = plan.settings.min_model_len, plan.context.machine
        yield from (
            judge(GpuJudge(models, min_len))
            if judge
            else this_machine.check_memory(models, machine, min_len, engine_ram_limit())
        )
    yield from checks.check_startup_timeout(models, process_environ())


def _rehearse_and_check(
    model: Candidate, plan: StartupPlan, judge: JudgeGpus | None
) -> tuple[Candidate, list[Finding]]:
    """Return the candidate without its refused options, and the findings on it."""
    gpu = plan.context.machine.gpus[0] if judge else None
    model, refusals = rehearse_startup(model, plan.context, plan.settings.system_prompt, gpu)
    # Omit other findings on the topic of a refusal.
    topics = {refusal.topic for refusal in refusals}
    findings = (finding for run_check in checks.MODEL_CHECKS for finding in run_check(model))
    return model, [*refusals, *(finding for finding in findings if finding.topic not in topics)]
