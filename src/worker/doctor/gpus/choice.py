"""Parses ``--gpu`` (a pool or a type of GPU, and a count) and the file of ``--prices``."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from worker.doctor.gpus.pools import POOLS, GpuType
from worker.engine.machine import Gpu, Machine
from worker.errors import StartFailed
from worker.process.estimates import GIB
from worker.validation import find_similar_names

ALL_POOLS = "all"
# Words that can be omitted in names of GPUs.
_OPTIONAL_WORDS = re.compile(r"nvidia|geforce|generation|rtx|[\s_-]")
# A name and a count of at most 99; larger numbers belong to the name, as in "rtx 4090".
_NAME_AND_COUNT = re.compile(r"(.+)[x*]\s*0*([1-9]\d?)")
_PRICES = TypeAdapter(dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]])


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
        """A GPU of the type with the least memory."""
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
    """Parse a pool or a type of GPU with an optional count, such as ``A40x2``.

    Raises:
        StartFailed: There is no such GPU; the message suggests the nearest names.
    """
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


def read_prices(path: Path) -> Mapping[str, float]:
    """Read prices per hour by pool from a JSON file, or from TOML if it is named ``*.toml``.

    Raises:
        StartFailed: The file can't be read or its content is invalid.
    """
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
