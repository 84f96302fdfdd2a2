"""The child that reads weights ahead: ``python -I -S reader.py BYTES FILE...``.

It imports nothing of the worker's, so that it is there in milliseconds and takes a few MiB. It
writes the bytes and the seconds that it read to standard output, also when it is ended.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

# Bytes that a thread reads at a time, and threads: a network disk answers several at once.
BLOCK = 16 << 20
READERS = 4

_LOWEST_PRIORITY = 19


class Reader:
    """Reads files into the page cache, block by block, in their order.

    Args:
        files: in the order in which they will be loaded.
        limit: bytes at most.
    """

    def __init__(self, files: Sequence[str], limit: int) -> None:
        self._blocks = _blocks(files, limit)
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._read = [0] * READERS

    def read(self) -> None:
        """Read everything; return when that is done."""
        threads = [
            threading.Thread(target=self._read_blocks, args=(number,), daemon=True)
            for number in range(READERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def report(self) -> str:
        """Return the bytes that were read so far, and the seconds."""
        return f"{sum(self._read)} {time.monotonic() - self._begun:.3f}\n"

    def _read_blocks(self, number: int) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        while block := self._next():
            # A file that can't be read is the engine's to report.
            with suppress(OSError):
                for size in _read_block(nowhere, *block):
                    self._read[number] += size

    def _next(self) -> tuple[str, int, int] | None:
        with self._lock:
            return next(self._blocks, None)


def _blocks(files: Sequence[str], limit: int) -> Iterator[tuple[str, int, int]]:
    """Yield a file, and the first byte and the number of bytes in it."""
    for file in files:
        size = 0
        with suppress(OSError):
            size = min(Path(file).stat().st_size, limit)
        limit -= size
        for offset in range(0, size, BLOCK):
            yield file, offset, min(BLOCK, size - offset)


def _read_block(nowhere: int, file: str, offset: int, size: int) -> Iterator[int]:
    """Read a block; yield the bytes of each step.

    The kernel moves the pages themselves: nothing is copied, and what is cached costs no time.
    """
    source = os.open(file, os.O_RDONLY)
    try:
        end = offset + size
        while offset < end and (sent := os.sendfile(nowhere, source, offset, end - offset)):
            offset += sent
            yield sent
    finally:
        os.close(source)


def main(limit: int, files: Sequence[str]) -> None:
    """Read the files."""
    # The processor is the import's. The disk is not given up: the engine waits for the same blocks.
    os.nice(_LOWEST_PRIORITY)
    reader = Reader(files, limit)

    def leave(*_: object) -> None:
        # The parent may have ended.
        with suppress(OSError):
            os.write(1, reader.report().encode())
        os._exit(0)

    # Ctrl-C reaches the whole process group: the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    reader.read()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
