"""Checks the files of rows and writes the rows as tokens, in a process without torch."""

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

from trainer.rows import MAX_MISTAKES, Mistakes, ParsedRow, read_rows
from trainer.texts import RenderedChat, RowEncoder, TokenRow
from trainer.values import InvalidRowError, PromptRow
from worker.children.with_parent import exit_with_parent
from worker.fine_tunes.spec import CheckResult, FileField, RowMistake, RowsFile, Spec

if TYPE_CHECKING:
    from transformers import TokenizersBackend

# Share of the training file's lines that are used for validation if there is no validation file.
VALIDATION_SHARE = 0.1
# Number of rows below which a warning recommends more.
RECOMMENDED_ROWS = 200
# Rows and characters that fill a batch for the tokenizer: enough for all cores, in little memory.
BATCH_ROWS, BATCH_CHARACTERS = 1_000, 1 << 18
# Maximum number of line numbers that a warning lists.
MAX_WARNING_LINES = 10
# Name of the file with the tokens of all rows, one row after another.
ROWS_FILE = "rows"
# Names of the two selections: the rows to train on, and the validation rows.
TRAINING, VALIDATION = "training", "validation"
NO_TOKENIZER = "the model's tokenizer is not from the tokenizers library, which training needs"


def check_and_tokenize_in_process(spec: Spec, directory: Path) -> CheckResult:
    """Check a training's rows and write them as tokens to a directory, in a separate process.

    The process needs little memory because transformers loads the tokenizer without torch there,
    unless the spec trusts the model's code. Paths in the spec must be absolute.

    Raises:
        OSError: A file can't be read or written.
        RuntimeError: The process was killed, or the tokenizer can't be loaded. The process's other
            exceptions are raised, too.
    """
    initializer = partial(exit_with_parent, os.getpid())
    with ProcessPoolExecutor(1, get_context("fork"), initializer) as process:
        try:
            return process.submit(_load_tokenizer_and_check_rows, spec, directory).result()
        except BrokenProcessPool:
            raise RuntimeError("the check of the rows was killed") from None


def _load_tokenizer_and_check_rows(spec: Spec, directory: Path) -> CheckResult:
    if not spec.trust_remote_code:
        # ``None`` makes Python treat torch as missing. Trusted code of the model may need torch.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # None is no module
    # Otherwise transformers logs the advice to install torch.
    logging.disable(logging.WARNING)
    # Imported only now that torch is hidden.
    from transformers import AutoTokenizer, TokenizersBackend  # noqa: PLC0415 - see above

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            spec.tokenizer, local_files_only=True, trust_remote_code=spec.trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        # OSErrors of transformers are not the volume's. Their last line names the missing file.
        reason = f"{type(error).__name__}: {error}".splitlines()[-1]
        raise RuntimeError(f"the check of the rows has crashed: {reason}") from error
    if not isinstance(tokenizer, TokenizersBackend):
        mistake = RowMistake(file="training_file", line=None, message=NO_TOKENIZER)
        return CheckResult(mistakes=(mistake,))
    return check_and_tokenize(spec, tokenizer, directory)


def check_and_tokenize(spec: Spec, tokenizer: "TokenizersBackend", directory: Path) -> CheckResult:
    """Check a training's rows, and write their tokens and the two selections to a directory.

    The selections are ``TRAINING`` and ``VALIDATION``; none is written if the rows have mistakes.

    Raises:
        OSError: A file can't be read or written.
    """
    encoder = RowEncoder(tokenizer, spec.chat_template)
    with closing(TokenWriter(directory)) as writer:
        readers = [_RowsReader("training_file", encoder, spec.max_length, writer)]
        readers[0].tokenize_file(spec.training)
        if spec.validation is not None:
            readers.append(_RowsReader("validation_file", encoder, spec.max_length, writer))
            readers[1].tokenize_file(spec.validation)
    training, validation = _split_rows(readers, spec.seed)
    mistakes = [mistake for reader in readers for mistake in reader.mistakes.listed_mistakes]
    count = sum(reader.mistakes.count for reader in readers)
    listed = tuple(mistakes[:MAX_MISTAKES])
    if mistakes:
        return CheckResult(mistakes=listed, more_mistakes=count - len(listed))
    lengths = writer.save_selection(TRAINING, training)
    return CheckResult(
        rows=len(training),
        validation_rows=len(writer.save_selection(VALIDATION, validation)),
        tokens=int(lengths.sum()),
        cut_rows=sum(reader.cut_rows for reader in readers),
        warnings=tuple(_make_warnings(readers, encoder, spec)),
    )


class TokenWriter:
    """Writes rows of tokens to a directory. The files are complete once the writer is closed."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._rows = (directory / ROWS_FILE).open("wb")
        self._offsets = array("q", [0])

    def close(self) -> None:
        self._rows.close()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def add_row(self, row: TokenRow) -> None:
        self._rows.write(row.tobytes())
        self._offsets.append(self._offsets[-1] + len(row))

    def save_selection(self, name: str, rows: Iterable[int]) -> NDArray[np.int64]:
        """Save a selection of rows, numbered from 0, and return their lengths in tokens."""
        begins = np.frombuffer(self._offsets, np.int64)
        numbers = np.fromiter(rows, np.int64)
        bounds = np.stack([begins[numbers], begins[numbers + 1]], axis=1)
        np.save(self._directory / f"{name}.npy", bounds)
        return bounds[:, 1] - bounds[:, 0]


class _RowsReader:
    """Reads one file of rows and writes its rows as up to ``max_length`` tokens each."""

    def __init__(
        self, file: FileField, encoder: RowEncoder, max_length: int, writer: TokenWriter
    ) -> None:
        self.mistakes = Mistakes(file)
        self.cut_rows = 0
        # Line numbers of rows that are left out: no token of an answer remains after the cut.
        self.dropped_lines: list[int] = []
        # Number of this file's first row in the writer, and the line number of each of its rows.
        self.first_row = len(writer)
        self.lines = array("q")
        self._encoder = encoder
        self._max_length = max_length
        self._writer = writer

    def tokenize_file(self, data: RowsFile) -> None:
        """Read the file and write its rows; after the first mistake, only collect more mistakes.

        Raises:
            OSError: A file can't be read or written.
        """
        pending: deque[tuple[list[int], Future[list[TokenRow]]]] = deque()
        # While one thread tokenizes a batch without the GIL, this thread reads the next batch.
        with ThreadPoolExecutor(1) as pool:
            for batch in _make_batches(read_rows(data, self.mistakes)):
                lines, texts = self._render_batch(batch)
                if self.mistakes.count:
                    continue  # after a mistake, only search for more
                pending.append((lines, pool.submit(list, self._encoder.tokenize(texts))))
                if len(pending) > 1:
                    self._write_rows(*pending.popleft())
            for last in pending:
                self._write_rows(*last)
        if not (self.lines or self.mistakes.count):
            message = f"no row has any of its answer within {self._max_length:,} tokens"
            self.mistakes.add(None, message)

    def _render_batch(
        self, batch: Sequence[ParsedRow]
    ) -> tuple[list[int], list[PromptRow | RenderedChat]]:
        """Return each text's line number, and the texts; a conversation may have several texts."""
        lines: list[int] = []
        rendered: list[PromptRow | RenderedChat] = []
        for row in batch:
            try:
                texts = self._encoder.render(row.value)
            except InvalidRowError as error:
                self.mistakes.add(row.line, error.message)
                continue
            rendered += texts
            lines += [row.line] * len(texts)
        return lines, rendered

    def _write_rows(self, lines: list[int], rows: "Future[list[TokenRow]]") -> None:
        for line, row in zip(lines, rows.result(), strict=True):
            self.cut_rows += len(row) > self._max_length
            cut = row[: self._max_length]
            if cut["learned"].any():
                self._writer.add_row(cut)
                self.lines.append(line)
            else:
                self.dropped_lines.append(line)


def _make_batches(rows: Iterator[ParsedRow]) -> Iterator[list[ParsedRow]]:
    batch: list[ParsedRow] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row.size
        if len(batch) == BATCH_ROWS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _split_rows(readers: Sequence[_RowsReader], seed: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the numbers of the rows to train on, and of the validation rows.

    Without a validation file, the seed chooses validation rows; a single line is then a mistake.
    """
    first, *others = readers
    if others:
        begin = others[0].first_row
        return range(begin), range(begin, begin + len(others[0].lines))
    lines = np.frombuffer(first.lines, np.int64)
    # A conversation may have become several rows. They have the same line, and stay together.
    distinct_lines = sorted(set(first.lines))
    if len(distinct_lines) < 2:
        if not first.mistakes.count:
            first.mistakes.add(
                None, "at least two rows are required: one of them is for validation"
            )
        return (), ()
    count = max(1, round(len(distinct_lines) * VALIDATION_SHARE))
    is_validation = np.isin(lines, random.Random(seed).sample(distinct_lines, count))
    return np.flatnonzero(~is_validation).tolist(), np.flatnonzero(is_validation).tolist()


def _make_warnings(
    readers: Sequence[_RowsReader], encoder: RowEncoder, spec: Spec
) -> Iterator[str]:
    count = len(set(readers[0].lines))
    if count < RECOMMENDED_ROWS:
        yield f"The training file has {count} rows; {RECOMMENDED_ROWS} or more are advised."
    for reader in readers:
        if dropped_lines := list(dict.fromkeys(reader.dropped_lines)):
            lines = ", ".join(map(str, dropped_lines[:MAX_WARNING_LINES]))
            more = ", …" if len(dropped_lines) > MAX_WARNING_LINES else ""
            yield (
                f"{reader.mistakes.file}: {len(dropped_lines):,} rows are left out because their "
                f"answers begin after the first {spec.max_length:,} tokens (lines {lines}{more})."
            )
    yield from encoder.warnings()
