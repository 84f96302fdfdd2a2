"""The child that reads weights ahead: ``python -I -S reader.py BYTES FILE...``.

It imports nothing of the worker's, so that it begins in milliseconds and takes a few MiB. It writes
the bytes and the seconds that it read to standard output, also when it is ended.

The kernel could read by itself (``POSIX_FADV_WILLNEED``), but would queue all weights at once: a
small file on the same disk, such as a tokenizer, then waits for seconds (4 to 6 s behind 2 GB on a
disk of 400 MB/s) instead of 0.02 s.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

# Bytes that a thread reads at a time, and threads: a network disk answers several at once.
BLOCK = 16 << 20
READERS = 4

_LOWEST_PRIORITY = 19


def blocks(files: Sequence[str], limit: int) -> Iterator[tuple[str, int, int]]:
    """Yield a file, and the first byte and the number of bytes in it."""
    for file in files:
        size = 0
        with suppress(OSError):
            size = min(Path(file).stat().st_size, limit)
        limit -= size
        for offset in range(0, size, BLOCK):
            yield file, offset, min(BLOCK, size - offset)


def read_block(sizes: list[int], file: str, offset: int, size: int) -> None:
    """Read a block into the page cache, and add the bytes of each step to a list.

    The kernel moves the pages themselves: nothing is copied, and what is cached costs no time.
    """
    # A file that can't be read is the engine's to report.
    with suppress(OSError), open(file, "rb") as source, open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - shorter for both
        end = offset + size
        while sent := os.sendfile(nowhere.fileno(), source.fileno(), offset, end - offset):
            sizes.append(sent)
            offset += sent


def main(limit: int, files: Sequence[str]) -> None:
    """Read the files, in the order in which they will be loaded; write what was read."""
    # The processor is the import's. The disk is not given up: the engine waits for the same blocks.
    os.nice(_LOWEST_PRIORITY)
    begun, sizes = time.monotonic(), list[int]()

    def leave(*_: object) -> None:
        # The parent may have ended.
        with suppress(OSError):
            os.write(1, f"{sum(sizes)} {time.monotonic() - begun:.3f}\n".encode())
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    with ThreadPoolExecutor(READERS) as pool:
        for block in blocks(files, limit):
            pool.submit(read_block, sizes, *block)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
