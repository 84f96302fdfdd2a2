"""The platform's GPUs, and verdicts on whether a model fits on them (``--check --gpu``).

``POOLS`` is the only table of the pools in which endpoints select GPUs; ``make listings`` generates
the hub's listing and the client's table (``deploy/pools.json``) from it. The pools and types come
from https://docs.runpod.io/references/gpu-types; those that are missing there, from the
documentation of RunPod's Flash library.

``parse_choice`` reads ``--gpu`` (a pool or a type of GPU, and a count), ``read_prices`` the file of
``--prices``. ``worker.doctor.memory`` makes the verdicts.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from worker.doctor.findings import Finding, Level
from worker.engine.machine import Gpu, Machine
from worker.errors import StartFailed
from worker.process.memory import GIB
from worker.validation import find_similar_names

ALL_POOLS = "all"
# Words that can be omitted in names of GPUs.
_OPTIONAL_WORDS = re.compile(r"nvidia|geforce|generation|rtx|[\s_-]")
# A name and a count of at most 99; larger numbers belong to the name, as in "rtx 4090".
_NAME_AND_COUNT = re.compile(r"(.+)[x*]\s*0*([1-9]\d?)")
_PRICES = TypeAdapter(dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]])
# Options that determine how many GPUs a worker has.
_PARALLEL_OPTIONS = ("TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE")
# Columns of the table of verdicts.
_HEADER = ("GPUs", "fit", "context", "requests", "price", "")


@dataclass(frozen=True)
class GpuType:
    """A type of GPU that the platform offers."""

    id: str  # the platform's
    name: str
    gib: float  # minimum that the driver offers to a process; less than the nominal size
    capability: int  # CUDA's, times ten: 89 for 8.9


@dataclass(frozen=True)
class GpuPool:
    """Types of GPUs that an endpoint selects together; ``gb`` is the pool's nominal gigabytes."""

    id: str
    gb: int
    types: tuple[GpuType, ...]


_AMPERE_16 = (
    GpuType("NVIDIA RTX A4000", "RTX A4000", 15.6, 86),
    GpuType("NVIDIA RTX A4500", "RTX A4500", 19.6, 86),
    GpuType("NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada", 19.5, 89),
    GpuType("NVIDIA RTX 2000 Ada Generation", "RTX 2000 Ada", 15.6, 89),
)
_AMPERE_24 = (
    GpuType("NVIDIA L4", "L4", 22.0, 89),
    GpuType("NVIDIA RTX A5000", "RTX A5000", 23.5, 86),
    GpuType("NVIDIA GeForce RTX 3090", "RTX 3090", 23.5, 86),
)
_AMPERE_48 = (
    GpuType("NVIDIA RTX A6000", "RTX A6000", 47.4, 86),
    GpuType("NVIDIA A40", "A40", 44.3, 86),
)
_ADA_48_PRO = (
    GpuType("NVIDIA L40", "L40", 44.3, 89),
    GpuType("NVIDIA L40S", "L40S", 44.3, 89),
    GpuType("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 47.4, 89),
)
_AMPERE_80 = (
    GpuType("NVIDIA A100 80GB PCIe", "A100 PCIe", 79.1, 80),
    GpuType("NVIDIA A100-SXM4-80GB", "A100 SXM", 79.1, 80),
)
_ADA_80_PRO = (
    GpuType("NVIDIA H100 PCIe", "H100 PCIe", 79.1, 90),
    GpuType("NVIDIA H100 80GB HBM3", "H100 SXM", 79.1, 90),
    GpuType("NVIDIA H100 NVL", "H100 NVL", 93.0, 90),
)
_BLACKWELL_96 = (
    GpuType("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000", 94.9, 120),
    GpuType("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 WK", 94.9, 120),
    GpuType(
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 MaxQ", 94.9, 120
    ),
)

# Ordered by the GPUs' memory.
POOLS = (
    GpuPool("AMPERE_16", 16, _AMPERE_16),
    GpuPool("AMPERE_24", 24, _AMPERE_24),
    GpuPool("ADA_24", 24, (GpuType("NVIDIA GeForce RTX 4090", "RTX 4090", 23.5, 89),)),
    GpuPool("ADA_32_PRO", 32, (GpuType("NVIDIA GeForce RTX 5090", "RTX 5090", 31.3, 120),)),
    GpuPool("AMPERE_48", 48, _AMPERE_48),
    GpuPool("ADA_48_PRO", 48, _ADA_48_PRO),
    GpuPool("AMPERE_80", 80, _AMPERE_80),
    GpuPool("ADA_80_PRO", 80, _ADA_80_PRO),
    GpuPool("BLACKWELL_96", 96, _BLACKWELL_96),
    GpuPool("HOPPER_141", 141, (GpuType("NVIDIA H200", "H200", 139.7, 90),)),
    GpuPool("BLACKWELL_180", 180, (GpuType("NVIDIA B200", "B200", 178.3, 100),)),
)


@dataclass(frozen=True)
class GpuChoice:
    """GPUs to judge for a worker: ``count`` GPUs of one type, which is any of ``types``.

    With ``on_this_machine``, vLLM plans the cache for this machine's GPUs instead of for ``gpu``.
    """

    name: str
    types: tuple[GpuType, ...]
    count: int = 1
    on_this_machine: bool = False

    @property
    def smallest_gpu(self) -> Gpu:
        kind = min(self.types, key=lambda kind: kind.gib)
        return Gpu(kind.id, int(kind.gib * GIB), kind.capability)

    @property
    def pool_id(self) -> str:
        """Id of the pool that contains all of the types; empty if there is no such pool."""
        return next((pool.id for pool in POOLS if {*self.types} <= {*pool.types}), "")

    @property
    def to_machine(self) -> Machine:
        return Machine(cpu=False, gpus=(self.smallest_gpu,) * self.count, gpu_choice=self.name)

    def __str__(self) -> str:
        return f"{self.name}x{self.count}" if self.count > 1 else self.name


def pool_choices(count: int = 1) -> list[GpuChoice]:
    """Return a choice of ``count`` GPUs for each of the platform's pools, smallest GPUs first."""
    return [GpuChoice(pool.id, pool.types, count) for pool in POOLS]


def parse_choice(text: str) -> GpuChoice:
    """Parse a pool or a type of GPU with an optional count, such as ``A40x2``."""
    counted = _NAME_AND_COUNT.fullmatch(text.strip())
    name, count = (counted[1].strip(), int(counted[2])) if counted else (text.strip(), 1)
    if pool := next((pool for pool in POOLS if pool.id == name.upper()), None):
        return GpuChoice(pool.id, pool.types, count)
    wanted, types = _normalize(name), {kind.id: kind for pool in POOLS for kind in pool.types}
    named = [gpu for gpu in types.values() if wanted in (_normalize(gpu.id), _normalize(gpu.name))]
    # H100 matches all types of H100.
    alike = [kind for kind in types.values() if wanted and _normalize(kind.name).startswith(wanted)]
    if not (matches := named or alike):
        raise StartFailed(f"--gpu {text}: no such GPU; {_suggest_names(name)}")
    return GpuChoice(matches[0].name if len(matches) == 1 else name, tuple(matches), count)


def min_gpu_count(options: Mapping[str, str]) -> int:
    sizes = (options.get(name, "1") for name in _PARALLEL_OPTIONS)
    return math.prod(int(size) for size in sizes if size.isdecimal() and size != "0")


def read_prices(path: Path) -> Mapping[str, float]:
    """Read prices per hour by pool from a JSON file, or from TOML if it is named ``*.toml``."""
    try:
        text = path.read_text(encoding="utf-8")
        prices = _PRICES.validate_python(
            tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        )
    except OSError as error:
        raise StartFailed(f"--prices {path} can't be read: {error.strerror}") from error
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "all of it"
        expected = 'a pool and its price an hour, such as "ADA_24": 0.69'
        raise StartFailed(f"--prices {path}: {where} is not {expected}") from error
    except ValueError as error:
        expected = "JSON, or TOML if its name ends with .toml"
        raise StartFailed(f"--prices {path} is not valid {expected}") from error
    unknown = prices.keys() - {pool.id for pool in POOLS}
    if unknown:
        name = min(unknown)
        raise StartFailed(f"--prices {path}: {name} is not a pool; {_suggest_names(name)}")
    return prices


def _normalize(name: str) -> str:
    return _OPTIONAL_WORDS.sub("", name.lower())


def _suggest_names(name: str) -> str:
    ids = [pool.id for pool in POOLS]
    names = [*ids, *(kind.name for pool in POOLS for kind in pool.types)]
    written = {known.upper(): known for known in names}
    near = find_similar_names(name.upper(), written, count=3)
    if near:
        return f"did you mean {' or '.join(written[one] for one in near)}?"
    return f"use a type, such as A40 or H100, or a pool: {', '.join(ids)}"


class Fit(StrEnum):
    """Whether a model fits on GPUs."""

    FITS = "fits"
    SHORTER = "shorter"  # with a shorter context than the model supports
    DOUBTFUL = "doubtful"  # too close to the limit, since a part of the memory is estimated
    UNKNOWN = "unknown"  # the size of the weights or of the cache
    NO = "no"


# Reasons for ``UNKNOWN``.
NO_WEIGHTS = "the size of the model's weights is unknown"
CANNOT_BUILD = "vLLM can't build the model here"
# Values for models that certainly fit, with the whole context or a shorter one.
FITTING = (Fit.FITS, Fit.SHORTER)
_LEVELS = {
    Fit.FITS: Level.OK,
    Fit.SHORTER: Level.WARN,
    Fit.DOUBTFUL: Level.WARN,
    Fit.UNKNOWN: Level.UNKNOWN,
    Fit.NO: Level.FAIL,
}


@dataclass(frozen=True)
class Verdict:
    """A judgment on whether a model fits on GPUs."""

    choice: GpuChoice
    fit: Fit
    reason: str  # the calculation, or why the model does not fit
    context: int = 0  # tokens of the longest text that fits; 0 if unknown
    concurrency: float = 0.0  # how many texts of that length fit at once


def verdict_finding(verdict: Verdict, change: str, price: str = "") -> Finding:
    """Return a verdict as a finding, which proposes ``change`` if the model does not fit."""
    name, level = str(verdict.choice), _LEVELS[verdict.fit]
    if verdict.fit not in FITTING:
        change = "" if verdict.fit is Fit.UNKNOWN else change
        return Finding(level, "memory", f"{name}: {verdict.reason}", change)
    capacity = f"{verdict.context} tokens, concurrency {concurrency_text(verdict)}"
    text = f"{name}: {capacity}{price and f', {price} an hour'}; {verdict.reason}"
    more = "use more GPUs, or larger ones, for a longer context"
    return Finding(level, "memory", text, more if verdict.fit is Fit.SHORTER else "")


def concurrency_text(verdict: Verdict) -> str:
    return "any" if math.isinf(verdict.concurrency) else str(math.floor(verdict.concurrency))


def price_text(choice: GpuChoice, prices: Mapping[str, float]) -> str:
    return f"{prices[choice.pool_id] * choice.count:.2f}" if choice.pool_id in prices else ""


def render_table(verdicts: Sequence[Verdict], prices: Mapping[str, float]) -> str:
    """Format the verdicts as a table, and name the cheapest or smallest GPUs that fit."""
    rows = [_HEADER]
    for verdict in verdicts:
        name, fit, price = str(verdict.choice), verdict.fit, price_text(verdict.choice, prices)
        if fit in FITTING:
            capacity = str(verdict.context), concurrency_text(verdict)
            rows.append((name, fit, *capacity, price, ""))
        else:
            rows.append((name, fit, "", "", "" if fit is Fit.NO else price, verdict.reason))
    columns = [column for column in range(len(_HEADER)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    lines = [
        "  ".join(row[column].ljust(widths[column]) for column in columns).rstrip() for row in rows
    ]
    return "".join(f"{line}\n" for line in [*lines, "", _best_choice_sentence(verdicts, prices)])


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
