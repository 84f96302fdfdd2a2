"""What ``--gpu`` asks about: a pool or a type of GPU, and how many; and a file of prices."""

import difflib
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

ALL = "all"
# Words that names of GPUs are written with or without.
_MAKERS = re.compile(r"nvidia|geforce|generation|rtx|[\s_-]")
# A name and a count: at most 99, since what is larger is part of a name, such as "rtx 4090".
_COUNTED = re.compile(r"(.+)[x*]\s*0*([1-9]\d?)")
_PRICES = TypeAdapter(dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]])


@dataclass(frozen=True)
class Choice:
    """GPUs of a worker: ``count`` of any one of the types that a name stands for.

    ``here``: vLLM plans the cache by the rules of this machine's platform, which they share.
    """

    name: str
    types: tuple[GpuType, ...]
    count: int = 1
    here: bool = False

    @property
    def gpu(self) -> Gpu:
        """The smallest of the types."""
        kind = min(self.types, key=lambda kind: kind.gib)
        return Gpu(kind.id, int(kind.gib * GIB), kind.capability)

    @property
    def pool(self) -> str:
        """The pool that all of the types are in; empty if there is no such one."""
        holding = (pool.id for pool in POOLS if {*self.types} <= {*pool.types})
        return next(holding, "")

    @property
    def machine(self) -> Machine:
        return Machine(cpu=False, gpus=(self.gpu,) * self.count)

    def __str__(self) -> str:
        return f"{self.name}x{self.count}" if self.count > 1 else self.name


def pools(count: int = 1) -> list[Choice]:
    """Return the pools of the platform, the smallest GPUs first."""
    return [Choice(pool.id, pool.types, count) for pool in POOLS]


def choice(text: str) -> Choice:
    """Read a pool or a type of GPU with a count, such as ``A40x2``.

    Raises:
        StartFailed: there is no such GPU; with the nearest names.
    """
    counted = _COUNTED.fullmatch(text.strip())
    name, count = (counted[1].strip(), int(counted[2])) if counted else (text.strip(), 1)
    if pool := next((pool for pool in POOLS if pool.id == name.upper()), None):
        return Choice(pool.id, pool.types, count)
    wanted, types = _plain(name), {kind.id: kind for pool in POOLS for kind in pool.types}
    named = [kind for kind in types.values() if wanted in (_plain(kind.id), _plain(kind.name))]
    # H100 stands for all of them.
    alike = [kind for kind in types.values() if wanted and _plain(kind.name).startswith(wanted)]
    if not (found := named or alike):
        raise StartFailed(f"--gpu {text}: no such GPU; {_nearest(name)}")
    return Choice(found[0].name if len(found) == 1 else name, tuple(found), count)


def read_prices(path: Path) -> Mapping[str, float]:
    """Read what a GPU costs an hour, by pool: an object in JSON, or keys in TOML.

    Raises:
        StartFailed: it can't be read, or says something else.
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
        raise StartFailed(f"--prices {path} is neither JSON nor, named so, TOML") from error
    unknown = prices.keys() - {pool.id for pool in POOLS}
    if unknown:
        name = min(unknown)
        raise StartFailed(f"--prices {path}: {name} is no pool; {_nearest(name)}")
    return prices


def _plain(name: str) -> str:
    return _MAKERS.sub("", name.lower())


def _nearest(name: str) -> str:
    ids = [pool.id for pool in POOLS]
    names = [*ids, *(kind.name for pool in POOLS for kind in pool.types)]
    written = {known.upper(): known for known in names}
    near = difflib.get_close_matches(name.upper(), written, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(written[one] for one in near)}?"
    return f"pools are {', '.join(ids)}"
