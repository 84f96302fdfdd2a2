"""Checks the files of rows, and writes the rows as tokens, in a process without torch."""

import logging
import os
import random
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainer.rows import MOST_MISTAKES, Found, Mistakes, rows
from trainer.spec import Checked, Data, File, Mistake, Spec
from trainer.texts import Row, Text, Texts
from trainer.values import Prompt, WrongRowError
from worker.children.with_parent import end_with

if TYPE_CHECKING:
    from transformers import TokenizersBackend

# Of the rows, if there is no file of rows for validation.
HELD_OUT = 0.1
ADVISED_ROWS = 200
# Rows and characters that are tokenized together: enough for all cores, little in memory.
BATCH_ROWS, BATCH_CHARACTERS = 1_000, 1 << 18
# Lines that a warning names.
MOST_LINES = 10
# File of all rows, one after another.
ROWS = "rows"
# Names of the rows to train on, and of those held out.
TRAINING, VALIDATION = "training", "validation"
NOT_FAST = "the model's tokenizer is not one of the tokenizers library, which a training needs"


def check(spec: Spec, place: Path) -> Checked:
    """Check a training's rows, and write them below a directory, in a process of its own.

    Its memory is small only without torch, which transformers else loads beside the tokenizer.

    Args:
        spec: the training; its paths are absolute.
        place: the directory; it may be missing.

    Raises:
        OSError: a file can't be read or written.
        RuntimeError: the process has crashed, as any other error of it says.
    """
    with ProcessPoolExecutor(1, get_context("fork"), partial(end_with, os.getpid())) as process:
        try:
            return process.submit(_check, spec, place).result()
        except BrokenProcessPool:
            raise RuntimeError("the check of the rows was killed") from None


def _check(spec: Spec, place: Path) -> Checked:
    if not spec.trust_remote_code:
        # Python's way to say that a module is missing. Code of the model's own may need it.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # no module
    # Else transformers advises to install torch.
    logging.disable(logging.WARNING)
    # Only now: torch is out of sight.
    from transformers import AutoTokenizer, TokenizersBackend  # noqa: PLC0415 - see above

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            spec.tokenizer, local_files_only=True, trust_remote_code=spec.trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        # Its OSErrors have no number, and are not the volume's; its last line says what is missing.
        reason = f"{type(error).__name__}: {error}".splitlines()[-1]
        raise RuntimeError(f"the check of the rows has crashed: {reason}") from error
    if not isinstance(tokenizer, TokenizersBackend):
        return Checked(mistakes=(Mistake(file="training_file", line=None, message=NOT_FAST),))
    return prepare(spec, tokenizer, place)


def prepare(spec: Spec, tokenizer: "TokenizersBackend", place: Path) -> Checked:
    """Check a training's rows, and write them below a directory: ``TRAINING``, ``VALIDATION``.

    Args:
        spec: the training.
        tokenizer: of its model.
        place: the directory.

    Returns:
        What was found; if there are mistakes, what was written is of no use.

    Raises:
        OSError: a file can't be read or written.
    """
    texts = Texts(tokenizer, spec.chat_template)
    with closing(Writer(place)) as writer:
        readings = [_Reading("training_file", texts, spec.max_length, writer)]
        readings[0].read(spec.training)
        if spec.validation is not None:
            readings.append(_Reading("validation_file", texts, spec.max_length, writer))
            readings[1].read(spec.validation)
    training, validation = _split(readings, spec.seed)
    mistakes = [mistake for reading in readings for mistake in reading.mistakes.first]
    count = sum(reading.mistakes.count for reading in readings)
    listed = tuple(mistakes[:MOST_MISTAKES])
    if mistakes:
        return Checked(mistakes=listed, more_mistakes=count - len(listed))
    lengths = writer.choose(TRAINING, training)
    return Checked(
        rows=len(training),
        validation_rows=len(writer.choose(VALIDATION, validation)),
        tokens=int(lengths.sum()),
        cut_rows=sum(reading.cut for reading in readings),
        warnings=tuple(_warnings(readings, texts, spec)),
    )


class Writer:
    """Writes rows into a directory; they are whole once it is closed."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._rows = (directory / ROWS).open("wb")
        self._begins = array("q", [0])

    def close(self) -> None:
        self._rows.close()

    def __len__(self) -> int:
        return len(self._begins) - 1

    def add(self, row: Row) -> None:
        self._rows.write(row.tobytes())
        self._begins.append(self._begins[-1] + len(row))

    def choose(self, name: str, rows: Iterable[int]) -> NDArray[np.int64]:
        """Give some of the rows a name, by their numbers, from 0; return their lengths."""
        begins = np.frombuffer(self._begins, np.int64)
        numbers = np.fromiter(rows, np.int64)
        bounds = np.stack([begins[numbers], begins[numbers + 1]], axis=1)
        np.save(self._directory / f"{name}.npy", bounds)
        return bounds[:, 1] - bounds[:, 0]


class _Reading:
    """A file of rows on its way into tokens.

    Args:
        file: which one.
        texts: the model's way to tokens.
        longest: the tokens of a row.
        writer: that takes them.
    """

    def __init__(self, file: File, texts: Texts, longest: int, writer: Writer) -> None:
        self.mistakes = Mistakes(file)
        self.cut = 0
        # Lines of rows that were cut before their answers.
        self.left_out: list[int] = []
        # The number of the first row that was written, and the line of each.
        self.first = len(writer)
        self.lines = array("q")
        self._texts = texts
        self._longest = longest
        self._writer = writer

    def read(self, data: Data) -> None:
        """Read the file, write the rows that are right, and note what is wrong.

        Raises:
            OSError: a file can't be read or written.
        """
        waiting: deque[tuple[list[int], Future[list[Row]]]] = deque()
        # While one thread tokenizes a batch, which needs no Python, this one reads the next.
        with ThreadPoolExecutor(1) as pool:
            for batch in _batches(rows(data, self.mistakes)):
                lines, texts = self._rendered(batch)
                if self.mistakes.count:
                    # The others are looked for, and nothing is trained.
                    continue
                waiting.append((lines, pool.submit(list, self._texts.tokens(texts))))
                if len(waiting) > 1:
                    self._write(*waiting.popleft())
            for last in waiting:
                self._write(*last)
        if not (self.lines or self.mistakes.count):
            message = f"no row has any of its answer within {self._longest:,} tokens"
            self.mistakes.add(None, message)

    def _rendered(self, batch: Sequence[Found]) -> tuple[list[int], list[Prompt | Text]]:
        """Return the prompts and conversations as the model reads them, and their lines."""
        lines: list[int] = []
        found: list[Prompt | Text] = []
        for row in batch:
            try:
                texts = self._texts.rendered(row.value)
            except WrongRowError as wrong:
                self.mistakes.add(row.line, wrong.message)
                continue
            found += texts
            lines += [row.line] * len(texts)
        return lines, found

    def _write(self, lines: list[int], rows: "Future[list[Row]]") -> None:
        for line, row in zip(lines, rows.result(), strict=True):
            self.cut += len(row) > self._longest
            cut = row[: self._longest]
            if cut["learned"].any():
                self._writer.add(cut)
                self.lines.append(line)
            else:
                self.left_out.append(line)


def _batches(found: Iterator[Found]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    size = 0
    for row in found:
        batch.append(row)
        size += row.size
        if len(batch) == BATCH_ROWS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _split(readings: Sequence[_Reading], seed: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the numbers of the rows to train on, and of those for validation."""
    first, *others = readings
    if others:
        begin = others[0].first
        return range(begin), range(begin, begin + len(others[0].lines))
    lines = np.frombuffer(first.lines, np.int64)
    # The texts of one conversation stay together.
    several = sorted(set(first.lines))
    if len(several) < 2:
        if not first.mistakes.count:
            first.mistakes.add(None, "there have to be two rows: one of them is for validation")
        return (), ()
    count = max(1, round(len(several) * HELD_OUT))
    held_out = np.isin(lines, random.Random(seed).sample(several, count))
    return np.flatnonzero(~held_out).tolist(), np.flatnonzero(held_out).tolist()


def _warnings(readings: Sequence[_Reading], texts: Texts, spec: Spec) -> Iterator[str]:
    count = len(set(readings[0].lines))
    if count < ADVISED_ROWS:
        yield f"The training file has {count} rows; {ADVISED_ROWS} or more are advised."
    for reading in readings:
        if left_out := list(dict.fromkeys(reading.left_out)):
            lines = ", ".join(map(str, left_out[:MOST_LINES]))
            more = ", …" if len(left_out) > MOST_LINES else ""
            yield (
                f"{reading.mistakes.file}: left out are {len(left_out):,} of the rows, whose "
                f"answers are behind the first {spec.max_length:,} tokens (lines {lines}{more})."
            )
    yield from texts.warnings()
