"""Checks whether the worker would start, without starting it, and proposes changes if it would not.

``handler.py --check`` calls ``main``. ``run_all_checks`` reads the same variables as a worker that
starts, and yields ``findings``. While vLLM is imported, ``lookups`` looks the models up, on the
disk and on the hub. ``engines`` then runs the phases of a start until a core would start, and makes
a ``Candidate`` of each engine that vLLM accepts. ``memory`` judges whether these fit into the
memory: of this machine or, with ``--gpu``, of the GPUs in ``gpus``. No engine is started, and no
weights are downloaded.
"""

import contextlib
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from worker.doctor.findings import Finding, Level, has_failure, render
from worker.engine.start import Start
from worker.errors import WorkerError
from worker.settings import Settings
from worker.settings.environment import (
    has_job_queue,
    set_unset_variables,
    set_variable,
    unset_variable,
)
from worker.settings.mistakes import SettingsError
from worker.settings.sources import RawSettings
from worker.volume import Volume
from worker.volume.ids import VolumeLocation

if TYPE_CHECKING:
    # Imported later, when the variables that the hub's library and vLLM read have been exported.
    from worker.doctor.engines import JudgeGpus
    from worker.doctor.memory import GpuJudge
    from worker.engine.machine import Machine

# Variables that silence libraries, whose messages would appear between the findings.
_QUIET_LIBRARIES = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TORCH_LOGS": "-all",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
}
# Variable that selects vLLM's platform. For other GPUs it is set to the CPU, on which vLLM builds a
# model without its weights.
_TARGET = "VLLM_TARGET_DEVICE"
# Finding on every GPU that is not in this machine, so that the result is never just ``ok``.
_UNSEEN_GPU = Finding(
    Level.UNKNOWN,
    "GPU",
    "its driver, and the kernels that vLLM would choose there, are not checked",
)


def main(raw_settings: RawSettings, gpu: str = "", prices: str = "") -> int:
    """Print the findings; return 1 if the worker would not start, else 0.

    ``gpu`` and ``prices`` are the values of ``--gpu`` and ``--prices``; empty without them.
    """
    # Hide the log of the startup's phases, and report vLLM's refusals only as findings.
    logging.getLogger("worker").setLevel(logging.WARNING)
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    if gpu:
        return _check_for_gpus(raw_settings, gpu, prices)
    findings = list(run_all_checks(raw_settings))
    sys.stdout.write(render(findings))
    return int(has_failure(findings))


def _check_for_gpus(raw_settings: RawSettings, gpu: str, prices: str) -> int:
    """Print findings for one choice of GPUs or all pools; return 1 if the worker starts nowhere."""
    from worker.doctor import gpus  # noqa: PLC0415 - it is rarely needed

    cost = gpus.read_prices(Path(prices)) if prices else {}
    set_variable(_TARGET, "cpu")
    all_pools = gpu.strip().lower() == gpus.ALL_POOLS
    if all_pools:
        choice = gpus.pool_choices(gpus.min_gpu_count(raw_settings.main_options))[-1]
    else:
        choice = gpus.parse_choice(gpu)
    verdicts: list[gpus.Verdict] = []

    def judge_gpus(judge: "GpuJudge") -> Iterator[Finding]:
        if all_pools:
            # Without the options that were refused.
            count = gpus.min_gpu_count(judge.models[0].engine.operator_options)
            verdicts.extend(chain.from_iterable(map(judge.verdicts, gpus.pool_choices(count))))
        else:
            verdict, price = judge.worst_verdict(choice), gpus.price_text(choice, cost)
            change = "--gpu all lists the GPUs on which it fits"
            yield gpus.verdict_finding(verdict, change, price)
        yield _UNSEEN_GPU

    findings = list(run_all_checks(raw_settings, choice.to_machine, judge_gpus))
    if not verdicts:
        # A single choice has a finding instead of a table; without a model there are no verdicts.
        sys.stdout.write(render(findings))
        return int(has_failure(findings) or all_pools)
    any_fits = any(verdict.fit is not gpus.Fit.NO for verdict in verdicts)
    where = " on the GPUs where the model fits" if any_fits else " on none of them"
    sys.stdout.write(render(findings, gpus.render_table(verdicts, cost), where))
    return int(has_failure(findings) or not any_fits)


def run_all_checks(
    raw_settings: RawSettings, machine: "Machine | None" = None, judge: "JudgeGpus | None" = None
) -> Iterator[Finding]:
    """Run all checks, and yield the findings.

    If ``machine`` is not this machine, ``judge`` yields the findings on whether the models fit.
    """
    start = Start.read(raw_settings)
    set_unset_variables(_QUIET_LIBRARIES)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lookups = None
        try:
            from worker.doctor.lookups import Lookups  # noqa: PLC0415 - reads exported variables
        except ValueError as error:
            text = f"the hub's library can't be imported: {error}"
            change = "correct HF_ENDPOINT, or the other variables that it reads"
            yield Finding(Level.FAIL, "hub", text, change)
        else:
            searched = raw_settings if start.has_model else RawSettings()
            lookups = Lookups(searched, Path(folder))
        accepted, findings = _read_options(start, machine)
        yield from [*findings, *report_volume(start.settings)]
        if lookups and _is_vllm_imported():
            from worker.doctor import engines  # noqa: PLC0415 - it imports vLLM

            yield from engines.check_engines(lookups, accepted, judge)


def _read_options(start: Start, machine: "Machine | None") -> tuple[Start | None, list[Finding]]:
    """Read the options of a start; return it, or None if they can't be read, and findings.

    If settings are wrong, the start that is returned is another one, without these settings.
    """
    try:
        start.read_options(machine)
    except SettingsError as error:
        wrong = error
    except WorkerError as error:
        return None, [Finding(Level.FAIL, "vLLM", error.message)]
    else:
        accepted = Finding(Level.OK, "settings", f"{', '.join(start.accepted_settings)}: accepted")
        return start, [accepted, *_warning_findings(start.warnings)]

    findings = [Finding(Level.FAIL, "settings", str(mistake)) for mistake in wrong.mistakes]
    # The name of a mistake in several variables lists all of them.
    names = {name for mistake in wrong.mistakes for name in mistake.name.split(", ")}
    for name in names:
        # vLLM reads some variables itself, so excluding them from the settings is not enough.
        unset_variable(name)
    valid = None
    if _is_vllm_imported():
        rest = Start.read(start.raw.without_settings(names))
        with contextlib.suppress(WorkerError):
            rest.read_options(machine)
            valid = rest
    if valid:
        text = f"{findings[-1].text}\nthe checks below ignore {', '.join(sorted(names))}"
        findings[-1] = replace(findings[-1], text=text)
    return valid, [*findings, *_warning_findings(wrong.warnings)]


def _warning_findings(texts: Sequence[str]) -> list[Finding]:
    return [Finding(Level.WARN, "settings", text) for text in texts]


def _is_vllm_imported() -> bool:
    """Return whether vLLM has been imported; after a failed import another one would fail, too."""
    return "worker.engine.options" in sys.modules


def report_volume(settings: Settings) -> Iterator[Finding]:
    location = VolumeLocation.from_settings(settings)
    if location.id:
        text = (
            f"{location}: if the endpoint has further volumes, they don't synchronise: a file, "
            "batch, fine-tune or adapter is on one of them only"
        )
        yield Finding(Level.OK, "volume", text)
    elif settings.runpod_volume_id:
        text = f"RUNPOD_VOLUME_ID={settings.runpod_volume_id} is not a volume's id"
        change = "use 6 to 20 letters and digits, so that ids can name the volume"
        yield Finding(Level.WARN, "volume", text, change)
    # On a laptop, only FILES_PATH shows that the endpoint will have files.
    if (has_job_queue() or settings.files_path) and (note := missing_key_note(settings)):
        yield Finding(Level.OK, "long work", note)


def missing_key_note(settings: Settings) -> str:
    """Return a note for a queue endpoint whose workers have a volume but no key; else blank."""
    if settings.batch_api_key or not Volume.from_settings(settings).is_usable:
        return ""
    return (
        "batches and fine-tunes that a job's time limit or a stopped worker interrupts continue "
        "only while a worker is up, or when somebody asks for them: set BATCH_API_KEY"
    )
