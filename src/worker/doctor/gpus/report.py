"""Prints which GPUs hold a worker's models, beside what else a start would refuse."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from worker import doctor
from worker.doctor.findings import (
    HELD,
    Finding,
    Fit,
    Level,
    Verdict,
    at_once,
    failed,
    finding,
    render,
)
from worker.doctor.gpus import asked
from worker.doctor.gpus.asked import ALL, Choice
from worker.settings.environment import overwrite
from worker.settings.sources import Given

if TYPE_CHECKING:
    # It imports vLLM.
    from worker.doctor.memory import Judge

# vLLM builds a model without its weights on this machine's CPU, whatever GPUs it is made for.
TARGET = "VLLM_TARGET_DEVICE"
# Options that say how many GPUs a worker has, if they are set.
_SIZES = ("TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE")
_HEAD = ("GPUs", "fit", "context", "at once", "price", "")
# Of a GPU that is not here, and so never an ``ok``.
_UNSEEN = Finding(
    Level.UNKNOWN,
    "GPU",
    "its driver, and the kernels that vLLM would choose there, are not looked at",
)


def main(given: Given, gpu: str, prices: Path | None) -> int:
    """Print the verdict on a GPU, or on all pools; return 1 if it, or none of them, would do.

    Raises:
        StartFailed: there are no such GPUs, or the file of prices is wrong.
    """
    cost = asked.read_prices(prices) if prices else {}
    overwrite(TARGET, "cpu")
    every = gpu.strip().lower() == ALL
    choices = asked.pools(_gpus(given)) if every else [asked.choice(gpu)]
    verdicts: list[Verdict] = []

    def judges(judge: "Judge") -> Iterator[Finding]:
        if every:
            verdicts.extend(chain.from_iterable(map(judge.verdicts, choices)))
        else:
            verdict = judge.verdict(choices[0])
            yield finding(verdict, "ask --gpu all which do", _price(choices[0], cost))
        yield _UNSEEN

    findings = list(doctor.examine(given, choices[-1].machine, judges))
    if not verdicts:
        # One choice is judged by a finding; without a model there is none to judge.
        sys.stdout.write(render(findings))
        return int(failed(findings) or every)
    holding = any(verdict.fit is not Fit.NO for verdict in verdicts)
    where = " on those that hold the model" if holding else " on none of them"
    sys.stdout.write(render(findings, table(verdicts, cost), where))
    return int(failed(findings) or not holding)


def table(verdicts: Sequence[Verdict], prices: Mapping[str, float]) -> str:
    """Return the verdicts as lines of a table, and which of the fitting ones cost least."""
    rows = [_HEAD, *(_row(verdict, prices) for verdict in verdicts)]
    columns = [column for column in range(len(_HEAD)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    lines = [
        "  ".join(row[column].ljust(widths[column]) for column in columns).rstrip() for row in rows
    ]
    return "".join(f"{line}\n" for line in [*lines, "", _conclusion(verdicts, prices)])


def _row(verdict: Verdict, prices: Mapping[str, float]) -> tuple[str, ...]:
    name, fit, price = str(verdict.choice), verdict.fit, _price(verdict.choice, prices)
    if fit not in HELD:
        return name, fit, "", "", "", verdict.why
    return name, fit, str(verdict.context), at_once(verdict), price, ""


def _conclusion(verdicts: Sequence[Verdict], prices: Mapping[str, float]) -> str:
    fitting = [verdict.choice for verdict in verdicts if verdict.fit is Fit.FITS]
    priced = [choice for choice in fitting if choice.pool in prices]
    if priced:
        least = min(priced, key=lambda choice: prices[choice.pool] * choice.count)
        return f"{least} costs least of those that hold the whole context."
    if fitting:
        least = min(fitting, key=lambda choice: (choice.count, choice.gpu.memory))
        return f"{least} is the smallest that holds the whole context."
    return "None of them holds the whole context."


def _price(choice: Choice, prices: Mapping[str, float]) -> str:
    return f"{prices[choice.pool] * choice.count:.2f}" if choice.pool in prices else ""


def _gpus(given: Given) -> int:
    """Return how many GPUs the settings ask for, at least."""
    sizes = (given.main.get(name, "1") for name in _SIZES)
    return math.prod(int(size) for size in sizes if size.isdecimal() and size != "0")
