"""A process that passes on what others print: as JSON objects, or unchanged.

It is a process, since a core is forked from a process that must have no thread. It is run by its
path in an interpreter without site-packages, and so imports the standard library only: it begins
within milliseconds.
"""

import contextlib
import json
import os
import re
import select
import selectors
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

# What a reader does: make objects of what is printed, or pass it on and note its last error.
OBJECTS, ERRORS = "objects", "errors"
# Bytes, of a line; a longer one is cut into several.
LONGEST = 1_000_000
# Characters of a line of a core's that is searched, and of a noted error.
LONGEST_SEARCHED = 2_000

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# vLLM's lines begin with the process (from a core) and the level, ours with the time, the SDK's
# with the level.
_LEVEL = re.compile(r"(?:\([^()]*\) |[\d:,. -]+ )?(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)\b")
# C++ libraries' lines begin with a letter and the date: [W1122 10:00:00.
_LETTER = re.compile(r"\[?([DIWEF])\d{4} \d\d:")
_BY_LETTER = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
# vLLM repeats this on each line of a record: (EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1].
_PREFIX = re.compile(r"(?:\([^()]*\) )?[A-Z]+ [\d-]+ [\d:]+ \[[^\]]*\] ")

# In front of errors that vLLM's log prints: the same, also without the level and what follows it.
_ERROR_PREFIX = re.compile(
    r"^(?:\([\w ]{1,40}(?:pid=\d{1,9})?\) ?)?(?:ERROR [^\[\n]{0,30}\[[^\]\n]{0,80}\] )?"
)
# The last line of a traceback: "torch.OutOfMemoryError: CUDA out of memory. Tried to ...".
_RAISED = re.compile(
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
_LOST_PEER = re.compile(r"Dist\w*Error: |NCCL|Connection (?:closed by peer|reset by peer|refused)")
_FULL = re.compile(r"OutOfMemoryError|out of memory")
# How errors begin that Python does not raise.
_NATIVE = ("Fatal Python error: ", "terminate called ", "CUDA error: ", "free(): ", "malloc(): ")


def timestamp(seconds: float) -> str:
    """Return a time since the epoch as ISO 8601, in UTC and with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def as_object(text: str) -> str:
    """Return a JSON object with a time, a level and a message; one that has them stays."""
    values = {"time": timestamp(time.time()), "level": "INFO"}
    if text.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            printed = json.loads(text)
            if "message" in printed:
                return json.dumps(values | printed, allow_nan=False)
    if level := _LEVEL.match(text):
        values["level"] = level[1]
    elif letter := _LETTER.match(text):
        values["level"] = _BY_LETTER[letter[1]]
    return json.dumps({**values, "message": text})


def error_in(line: str) -> str | None:
    """Return the error that a line tells of, without the log's prefix; None if it tells of none."""
    text = _ERROR_PREFIX.sub("", line[:LONGEST_SEARCHED], count=1).strip()
    if text.startswith(PASSED_ON):
        return None
    return text if _RAISED.match(text) or text.startswith(_NATIVE) else None


class Lines:
    """Makes objects of the bytes that are printed to one file descriptor."""

    def __init__(self) -> None:
        self._unfinished = b""
        # The lines of a record of vLLM's that is not complete, and what all of them begin with.
        self._record = ""
        self._prefix = ""

    def feed(self, printed: bytes) -> bytes:
        """Return the objects that are complete, a line each."""
        *lines, self._unfinished = (self._unfinished + printed).split(b"\n")
        if len(self._unfinished) >= LONGEST:
            lines.append(self._unfinished)
            self._unfinished = b""
        texts = [line.decode(errors="replace") for line in lines]
        return b"".join(object_ for text in texts for object_ in self._take(text))

    def rest(self) -> bytes:
        """Return what is not complete."""
        return self.feed(b"\n") + b"".join(self._take(""))

    def _take(self, line: str) -> Iterator[bytes]:
        line = _ESCAPES.sub("", line)
        # As on a terminal, a carriage return begins the line again: progress bars have them.
        text = line.rstrip("\r").rpartition("\r")[2]
        prefix = match[0] if (match := _PREFIX.match(text)) else ""
        if self._record and prefix == self._prefix and len(self._record) < LONGEST:
            self._record += f"\n{text.removeprefix(prefix)}"
        else:
            yield from self._complete()
            self._record, self._prefix = text, prefix
        # All lines of vLLM's records but the last end with one.
        if not (prefix and line.endswith("\r")):
            yield from self._complete()

    def _complete(self) -> Iterator[bytes]:
        record, self._record = self._record.rstrip(), ""
        if record:
            yield as_object(record).encode() + b"\n"


class CoreLines:
    """Leaves what a core prints as it is, in whole lines, and notes the last error in it.

    Args:
        note: a file that begins with the last error, and a line feed.
    """

    def __init__(self, note: int) -> None:
        self._note = note
        self._unfinished = b""

    def feed(self, printed: bytes) -> bytes:
        """Return the lines that are complete."""
        printed = self._unfinished + printed
        # Progress bars end their lines with a carriage return.
        end = max(printed.rfind(b"\n"), printed.rfind(b"\r")) + 1
        if len(printed) - end > LONGEST_SEARCHED:
            end = len(printed)
        whole, self._unfinished = printed[:end], printed[end:]
        for line in whole.splitlines():
            if error := error_in(line.decode(errors="replace")):
                self._take_note(error)
        return whole

    def rest(self) -> bytes:
        """Return what is not complete."""
        rest, self._unfinished = self._unfinished, b""
        return rest

    def _take_note(self, error: str) -> None:
        noted = os.pread(self._note, LONGEST_SEARCHED, 0).partition(b"\n")[0]
        if not (_LOST_PEER.search(error) and _FULL.search(noted.decode(errors="replace"))):
            # The disk may be full.
            with contextlib.suppress(OSError):
                os.pwrite(self._note, error.encode()[:LONGEST_SEARCHED] + b"\n", 0)


class Pipe:
    """What is printed to one file descriptor, on its way to where it belongs."""

    def __init__(self, source: int, target: int, lines: Lines | CoreLines) -> None:
        self.source = source
        self._target = target
        self._lines = lines

    def pass_on(self) -> bool:
        """Pass on what has been printed; return False if nothing can follow."""
        printed = os.read(self.source, 65_536)
        write(self._lines.feed(printed) if printed else self._lines.rest(), self._target)
        return bool(printed)

    def pass_on_rest(self) -> None:
        """Pass on a line that has no end yet."""
        write(self._lines.rest(), self._target)


def write(data: bytes, target: int) -> None:
    """Write everything, or nothing more once nobody can read it: who prints goes on."""
    with contextlib.suppress(OSError):
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                # Another process has the same file, and does not want to wait for it.
                select.select([], [target], [])


def pass_on(pipes: set[Pipe], selector: selectors.BaseSelector, control: int) -> None:
    """Pass on what is printed until nobody can print any more."""
    asked = False
    while pipes:
        keys = [key for key, _ in selector.select(0 if asked else None)]
        ready = {key.data for key in keys if key.data}
        for pipe in ready:
            if not pipe.pass_on():
                selector.unregister(pipe.source)
                pipes.remove(pipe)
        if asked and not ready:
            _answer(pipes, control)
            asked = False
        elif len(keys) > len(ready):
            asked = _is_asked(control)
            if not asked:
                selector.unregister(control)


def _is_asked(control: int) -> bool:
    """Return whether the worker has asked; if not, it has ended."""
    # Its end is an error here if it has not waited for an answer.
    with contextlib.suppress(OSError):
        return bool(os.read(control, 1))
    return False


def _answer(pipes: set[Pipe], control: int) -> None:
    for pipe in pipes:
        pipe.pass_on_rest()
    # The worker may have ended.
    with contextlib.suppress(OSError):
        os.write(control, b".")


def main(kind: str, fd: int, pairs: Sequence[str]) -> None:
    """Run ``pass_on`` between pairs of file descriptors.

    Args:
        kind: ``OBJECTS`` or ``ERRORS``.
        fd: for objects, a socket to the worker: a byte from it asks to write all that was printed,
            a byte to it says that this is done. For errors, the file of the note.
        pairs: such as "5:1": read from 5, write to 1.
    """
    pipes = set()
    with selectors.DefaultSelector() as selector:
        for pair in pairs:
            source, target = map(int, pair.split(":"))
            pipe = Pipe(source, target, CoreLines(fd) if kind == ERRORS else Lines())
            selector.register(pipe.source, selectors.EVENT_READ, pipe)
            pipes.add(pipe)
        if kind == OBJECTS:
            selector.register(fd, selectors.EVENT_READ)
        pass_on(pipes, selector, fd)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
