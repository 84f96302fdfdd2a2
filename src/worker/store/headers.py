"""Reads the headers of safetensors files: how many elements there are of each type."""

import json
from collections import Counter
from collections.abc import Iterable
from math import prod
from pathlib import Path

# Before the header stands its length, little endian.
_LENGTH_BYTES = 8
# The format's own limit.
_LONGEST_BYTES = 100_000_000
# What parsing raises where there is no safetensors header.
_NO_HEADER = (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError)


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
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            if length > _LONGEST_BYTES:
                raise Unreadable(f"{file.name} is no safetensors file")
            header = json.loads(opened.read(length))
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        end = max((entry["data_offsets"][1] for entry in entries), default=0)
        counted: Counter[str] = Counter()
        for entry in entries:
            counted[entry["dtype"]] += prod(entry["shape"])
        whole = file.stat().st_size >= _LENGTH_BYTES + length + end
    except _NO_HEADER as error:
        raise Unreadable(f"{file.name} is no safetensors file") from error
    if not whole:
        raise Unreadable(f"{file.name} is cut off")
    return counted
