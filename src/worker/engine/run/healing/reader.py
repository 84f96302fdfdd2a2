"""Passes on what a core prints, and notes the last error in it. Runs as a script of its own.

It is a process, since the core is forked from a process that must have no thread. It imports
nothing but the standard library, so that it begins within milliseconds.
"""

import contextlib
import os
import re
import select
import selectors
import sys

# Characters of a line that is searched, and of a noted error.
LONGEST_LINE = 2_000

# In front of lines that vLLM's log prints: "(EngineCore pid=7) ERROR 11-22 19:50:01 [core.py:9] ".
LOG_PREFIX = re.compile(
    r"^(?:\([\w ]{1,40}(?:pid=\d{1,9})?\) ?)?(?:ERROR [^\[\n]{0,30}\[[^\]\n]{0,80}\] )?"
)
# The last line of a traceback: "torch.OutOfMemoryError: CUDA out of memory. Tried to ...".
RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt)|Exception)(?:: |$)"
)
# What vLLM raises whatever the reason was, once that has been printed by the process below: by a
# part of the core on a GPU of its own, by the core.
PASSED_ON = (
    "RuntimeError: Engine core initialization failed",
    "Exception: WorkerProc initialization failed due to an exception",
    "RuntimeError: Worker failed with error '",
    "RuntimeError: Executor failed.",
)
# What other parts say when one has ended: no news, if that one's memory was full.
LOST_PEER = re.compile(r"Dist\w*Error: |NCCL|Connection (?:closed by peer|reset by peer|refused)")
FULL = re.compile(r"OutOfMemoryError|out of memory")
# How errors begin that Python does not raise.
NATIVE = ("Fatal Python error: ", "terminate called ", "CUDA error: ", "free(): ", "malloc(): ")


def error_in(line: str) -> str | None:
    """Return the error that a line tells of, without the log's prefix; None if it tells of none."""
    text = LOG_PREFIX.sub("", line[:LONGEST_LINE], count=1).strip()
    if text.startswith(PASSED_ON):
        return None
    return text if RAISED.match(text) or text.startswith(NATIVE) else None


class Pipe:
    """One of the core's streams: whole lines of it are written on."""

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self._target = target
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """Write on what has come, and return its lines; None at the end."""
        data = os.read(self.source, 1 << 16)
        # Progress bars end their lines with a carriage return.
        ends = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        whole, self._rest = (
            (self._rest + data[:ends], data[ends:]) if ends else (b"", self._rest + data)
        )
        if not data or len(self._rest) > LONGEST_LINE:
            whole, self._rest = whole + self._rest, b""
        write(whole, self._target)
        return whole.splitlines() if data else None


def write(data: bytes, target: int) -> None:
    """Write everything, or nothing more once nobody can read it: the core goes on."""
    with contextlib.suppress(OSError):
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                # Another process has the same file, and does not want to wait for it.
                select.select([], [target], [])


def main(note: int, *pipes: tuple[int, int]) -> None:
    """Read until nobody can print any more.

    Args:
        note: a file that begins with the last error, and a line feed.
        pipes: from where to where.
    """
    with selectors.DefaultSelector() as selector:
        for source, target in pipes:
            selector.register(source, selectors.EVENT_READ, Pipe(source, target))
        while selector.get_map():
            for key, _ in selector.select():
                lines = key.data.read()
                if lines is None:
                    selector.unregister(key.fd)
                _take_note(note, lines or [])


def _take_note(note: int, lines: list[bytes]) -> None:
    for line in lines:
        error = error_in(line.decode(errors="replace"))
        if error and not (LOST_PEER.search(error) and FULL.search(_noted(note))):
            # The disk may be full.
            with contextlib.suppress(OSError):
                os.pwrite(note, error.encode()[:LONGEST_LINE] + b"\n", 0)


def _noted(note: int) -> str:
    return os.pread(note, LONGEST_LINE, 0).partition(b"\n")[0].decode(errors="replace")


if __name__ == "__main__":
    _note, *_ends = map(int, sys.argv[1:])
    main(_note, *zip(_ends[::2], _ends[1::2], strict=True))
