"""The script of the child process that reads weights: ``python -I -S reader.py BYTES FILE...``.

It imports no module of the worker, so that it starts in milliseconds and uses a few MiB. It writes
the number of bytes and seconds to standard output, also when it is terminated.

The kernel could read the files itself (``POSIX_FADV_WILLNEED``), but would queue all weights
immediately. A small file on the same disk, such as a tokenizer, would then wait for seconds
(4 to 6 s behind 2 GB on a disk of 400 MB/s) instead of 0.02 s.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

# Bytes per read, and number of threads: a network disk can serve several reads concurrently.
BLOCK_BYTES = 16 << 20
READER_THREADS = 4

_LOWEST_PRIORITY = 19


def iter_blocks(files: Sequence[str], limit: int) -> Iterator[tuple[str, int, int]]:
    """Yield the file, offset and size of each block, up to a total number of bytes."""
    for file in files:
        size = 0
        with suppress(OSError):
            size = min(Path(file).stat().st_size, limit)
        limit -= size
        for offset in range(0, size, BLOCK_BYTES):
            yield file, offset, min(BLOCK_BYTES, size - offset)


def read_into_page_cache(sizes: list[int], file: str, offset: int, size: int) -> None:
    """Read a block into the page cache, and append each ``sendfile`` call's size to ``sizes``.

    The kernel moves the pages without copying them, and pages that are already cached take no time.
    """
    # The engine reports files that can't be read.
    with suppress(OSError), open(file, "rb") as source_file, open(os.devnull, "wb") as null_device:  # noqa: PTH123 - shorter than Path.open
        end = offset + size
        while sent := os.sendfile(null_device.fileno(), source_file.fileno(), offset, end - offset):
            sizes.append(sent)
            offset += sent


def main(limit: int, files: Sequence[str]) -> None:
    """Read the files in their order, then report the number of bytes and seconds, and exit."""
    # The parent's import of vLLM has priority on the CPU. The disk's priority is not reduced
    # because the engine waits for the same blocks.
    os.nice(_LOWEST_PRIORITY)
    start_time, sizes = time.monotonic(), list[int]()

    def report_and_exit(*_: object) -> None:
        # Writing fails if the parent has exited.
        with suppress(OSError):
            os.write(1, f"{sum(sizes)} {time.monotonic() - start_time:.3f}\n".encode())
        os._exit(0)

    signal.signal(signal.SIGTERM, report_and_exit)
    with ThreadPoolExecutor(READER_THREADS) as pool:
        for block in iter_blocks(files, limit):
            pool.submit(read_into_page_cache, sizes, *block)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report_and_exit()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
