"""Rows as tokens in files: written one after another, read where they are needed."""

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

# All tokens, and beside them whether each is learned.
IDS, LEARNED = "ids", "learned"
# Names of the rows to train on, and of those held out.
TRAINING, VALIDATION = "training", "validation"


class Row(NamedTuple):
    """A row to train on.

    Args:
        ids: its tokens.
        learned: for each token, whether it is part of an answer and carries loss.
    """

    ids: NDArray[np.int32]
    learned: NDArray[np.bool_]


class Packed(Sequence[Row]):
    """Some of the rows in a directory, in constant memory: the files are mapped.

    Args:
        directory: that a ``Writer`` has filled.
        index: for each row where its tokens begin, and how many they are.
    """

    def __init__(self, directory: Path, index: NDArray[np.int64]) -> None:
        self._directory = directory
        self._index = index
        self._ids = np.memmap(directory / IDS, np.int32, "r")
        self._learned = np.memmap(directory / LEARNED, np.bool_, "r")

    @classmethod
    def named(cls, directory: Path, name: str) -> Self:
        """Return the rows that ``Writer.choose`` has given a name."""
        return cls(directory, np.load(directory / f"{name}.npy"))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each row."""
        return self._index[:, 1]

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> "Packed": ...

    def __getitem__(self, index: SupportsIndex | slice) -> "Row | Packed":
        if isinstance(index, slice):
            return Packed(self._directory, self._index[index])
        begin, length = self._index[index]
        end = begin + length
        return Row(np.asarray(self._ids[begin:end]), np.asarray(self._learned[begin:end]))


class Writer:
    """Writes rows into a directory; on leaving the context they are whole."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._begins = array("q", [0])

    def __enter__(self) -> Self:
        self._ids = (self._directory / IDS).open("wb")
        self._learned = (self._directory / LEARNED).open("wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ids.close()
        self._learned.close()

    def __len__(self) -> int:
        return len(self._begins) - 1

    def add(self, ids: Sequence[int], learned: NDArray[np.bool_]) -> None:
        """Write a row; ``learned`` is as long as ``ids``."""
        self._ids.write(np.asarray(ids, np.int32).tobytes())
        self._learned.write(learned.tobytes())
        self._begins.append(self._begins[-1] + len(ids))

    def choose(self, name: str, rows: Iterable[int]) -> NDArray[np.int64]:
        """Give some of the rows a name, by their numbers, from 0; return their lengths."""
        begins = np.frombuffer(self._begins, np.int64)
        numbers = np.fromiter(rows, np.int64)
        lengths = begins[numbers + 1] - begins[numbers]
        np.save(self._directory / f"{name}.npy", np.stack([begins[numbers], lengths], axis=1))
        return lengths
