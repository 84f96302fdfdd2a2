"""Reads the headers of safetensors files: how many elements there are of each type."""

from collections import Counter
from collections.abc import Iterable
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

# What safetensors says of a file whose size is not that of its header's tensors.
_INCOMPLETE = "incomplete metadata"


class Unreadable(ValueError):
    """A file is no safetensors file, or is cut off."""


def count_elements(files: Iterable[Path]) -> Counter[str]:
    """Count the elements in files by the format's names of types (F32, BF16, ...).

    Raises:
        Unreadable: a file is no safetensors file, or is cut off.
    """
    total: Counter[str] = Counter()
    for file in files:
        total += _count(file)
    return total


def _count(file: Path) -> Counter[str]:
    counted: Counter[str] = Counter()
    try:
        with safe_open(file, "np") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                tensor = opened.get_slice(name)
                counted[tensor.get_dtype()] += prod(tensor.get_shape())
    except (OSError, SafetensorError) as error:
        cut_off = _INCOMPLETE in str(error)
        raise Unreadable(
            f"{file.name} {'is cut off' if cut_off else 'is no safetensors file'}"
        ) from error
    return counted
