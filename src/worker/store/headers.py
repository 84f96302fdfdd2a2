"""What the headers of safetensors files on a disk say: types and counts, none of the numbers."""

import json
from collections import Counter
from collections.abc import Iterable
from math import prod
from pathlib import Path

# A header is preceded by its length, eight bytes, little end first.
_LENGTH_BYTES = 8
# The format's own limit; what claims more is no header.
_LONGEST_BYTES = 100_000_000
# What comes of reading something else as one.
_NO_HEADER = (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError)


class Unreadable(ValueError):
    """A file is no safetensors file, or only a part of one."""


def tensors(files: Iterable[Path]) -> Counter[str]:
    """Count the elements in several files by the format's name of their type (F32, BF16, ...).

    Raises:
        Unreadable: a file is not what its name says.
    """
    total: Counter[str] = Counter()
    for file in files:
        total += _tensors(file)
    return total


def _tensors(file: Path) -> Counter[str]:
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
