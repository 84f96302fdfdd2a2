"""Prints on which GPUs a worker's models fit, with the other findings on its settings."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from worker import doctor
from worker.doctor.findings import (
    FITTING,
    NO_WEIGHTS,
    Finding,
    Fit,
    Level,
    Verdict,
    concurrency_text,
    has_failure,
    render,
    verdict_finding,
)
from worker.doctor.gpus.choice import ALL_POOLS, GpuChoice, parse_choice, pool_choices, read_prices
from worker.settings.environment import set_variable
from worker.settings.sources import RawSettings

if TYPE_CHECKING:
    # Importing this module imports vLLM.
    from worker.doctor.memory import GpuJudge

# Variable that selects vLLM's platform. It is set to the CPU, on which vLLM builds a model without
# its weights, whatever GPU is judged.
TARGET = "VLLM_TARGET_DEVICE"
# Options that determine how many GPUs a worker has.
_PARALLEL_OPTIONS = ("TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE")
_HEADER = ("GPUs", "fit", "context", "requests", "price", "")
# Finding on every GPU that is not in this machine, so that the result is never just ``ok``.
_UNSEEN_GPU = Finding(
    Level.UNKNOWN,
    "GPU",
    "its driver, and the kernels that vLLM would choose there, are not checked",
)


def main(raw_settings: RawSettings, gpu: str, prices: Path | None) -> int:
    """Print findings for one choice of GPUs or all pools; return 1 if the worker starts nowhere.

    Raises:
        StartFailed: The GPUs don't exist, or the file of prices is invalid.
    """
    cost = read_prices(prices) if prices else {}
    set_variable(TARGET, "cpu")
    all_pools = gpu.strip().lower() == ALL_POOLS
    options = raw_settings.main_options
    choice = pool_choices(_min_gpu_count(options))[-1] if all_pools else parse_choice(gpu)
    verdicts: list[Verdict] = []

    def judge_gpus(judge: "GpuJudge") -> Iterator[Finding]:
        if all_pools:
            # Without the options that were refused.
            count = _min_gpu_count(judge.models[0].engine.operator_options)
            verdicts.extend(chain.from_iterable(map(judge.verdicts, pool_choices(count))))
        else:
            verdict = judge.worst_verdict(choice)
            change = "--gpu all lists the GPUs on which it fits"
            yield verdict_finding(verdict, change, _price_text(choice, cost))
        yield _UNSEEN_GPU

    findings = list(doctor.run_all_checks(raw_settings, choice.to_machine, judge_gpus))
    if not verdicts:
        # A single choice has a finding instead of a table; without a model there are no verdicts.
        sys.stdout.write(render(findings))
        return int(has_failure(findings) or all_pools)
    any_fits = any(verdict.fit is not Fit.NO for verdict in verdicts)
    where = " on the GPUs where the model fits" if any_fits else " on none of them"
    sys.stdout.write(render(findings, render_table(verdicts, cost), where))
    return int(has_failure(findings) or not any_fits)


def render_table(verdicts: Sequence[Verdict], prices: Mapping[str, float]) -> str:
    """Format the verdicts as a table, and name the cheapest or smallest GPUs that fit."""
    rows = [_HEADER, *(_row(verdict, prices) for verdict in verdicts)]
    columns = [column for column in range(len(_HEADER)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    lines = [
        "  ".join(row[column].ljust(widths[column]) for column in columns).rstrip() for row in rows
    ]
    return "".join(f"{line}\n" for line in [*lines, "", _best_choice_sentence(verdicts, prices)])


def _row(verdict: Verdict, prices: Mapping[str, float]) -> tuple[str, ...]:
    name, fit, price = str(verdict.choice), verdict.fit, _price_text(verdict.choice, prices)
    if fit not in FITTING:
        return name, fit, "", "", "" if fit is Fit.NO else price, verdict.reason
    return name, fit, str(verdict.context), concurrency_text(verdict), price, ""


def _best_choice_sentence(verdicts: Sequence[Verdict], prices: Mapping[str, float]) -> str:
    fitting = [verdict.choice for verdict in verdicts if verdict.fit is Fit.FITS]
    priced = [choice for choice in fitting if choice.pool_id in prices]
    if priced:
        least = min(priced, key=lambda choice: prices[choice.pool_id] * choice.count)
        return f"{least} costs least of those that hold the whole context."
    if fitting:
        least = min(fitting, key=lambda choice: (choice.count, choice.smallest_gpu.memory))
        return f"{least} is the smallest that holds the whole context."
    reasons = {verdict.reason for verdict in verdicts if verdict.fit is Fit.UNKNOWN}
    if all(verdict.fit is Fit.UNKNOWN for verdict in verdicts):
        remedy = (
            "the files of the weights make it known, on the disk or on the hub"
            if reasons == {NO_WEIGHTS}
            else "a check on a machine with such GPUs makes it known"
        )
        return f"Which of them hold the model is unknown: {remedy}."
    is_certain = all(verdict.fit in (Fit.NO, Fit.SHORTER) for verdict in verdicts)
    return f"None of them {'' if is_certain else 'certainly '}holds the whole context."


def _price_text(choice: GpuChoice, prices: Mapping[str, float]) -> str:
    return f"{prices[choice.pool_id] * choice.count:.2f}" if choice.pool_id in prices else ""


def _min_gpu_count(options: Mapping[str, str]) -> int:
    """Return the minimum number of GPUs that the options of an engine require."""
    sizes = (options.get(name, "1") for name in _PARALLEL_OPTIONS)
    return math.prod(int(size) for size in sizes if size.isdecimal() and size != "0")
