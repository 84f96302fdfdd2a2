"""A process that passes on what others print, as one JSON object a line.

It is run by its path in an interpreter without site-packages, and so imports the standard library
only.
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

# The file descriptor of a socket to the worker: a byte from it asks to write all that was printed,
# a byte to it says that this is done.
CONTROL = 0
# Bytes, of a line; a longer one is cut into several.
LONGEST = 1_000_000

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# vLLM's lines begin with the process (from a core) and the level, ours with the time, the SDK's
# with the level.
_LEVEL = re.compile(r"(?:\([^()]*\) |[\d:,. -]+ )?(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)\b")
# C++ libraries' lines begin with a letter and the date: [W1122 10:00:00.
_LETTER = re.compile(r"\[?([DIWEF])\d{4} \d\d:")
_BY_LETTER = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
# vLLM repeats this on each line of a record: (EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1].
_PREFIX = re.compile(r"(?:\([^()]*\) )?[A-Z]+ [\d-]+ [\d:]+ \[[^\]]*\] ")


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


class Lines:
    """Makes objects of the bytes that are printed to one file descriptor."""

    def __init__(self) -> None:
        self._unfinished = b""
        # The lines of a record of vLLM's that is not complete, and what all of them begin with.
        self._record = ""
        self._prefix = ""

    def feed(self, printed: bytes) -> Iterator[str]:
        """Yield the objects that are complete."""
        *lines, self._unfinished = (self._unfinished + printed).split(b"\n")
        if len(self._unfinished) >= LONGEST:
            lines.append(self._unfinished)
            self._unfinished = b""
        for line in lines:
            yield from self._take(line.decode(errors="replace"))

    def rest(self) -> Iterator[str]:
        """Yield what is not complete."""
        yield from self.feed(b"\n")
        yield from self._take("")

    def _take(self, line: str) -> Iterator[str]:
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

    def _complete(self) -> Iterator[str]:
        record, self._record = self._record.rstrip(), ""
        if record:
            yield as_object(record)


class _Pipe:
    """What is printed to one file descriptor, on its way to where it belongs."""

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self._target = target
        self._lines = Lines()

    def pass_on(self) -> bool:
        """Pass on what has been printed; return False if nothing can follow."""
        printed = os.read(self.source, 65_536)
        self._write(self._lines.feed(printed) if printed else self._lines.rest())
        return bool(printed)

    def pass_on_rest(self) -> None:
        """Pass on a line that has no end yet."""
        self._write(self._lines.rest())

    def _write(self, objects: Iterator[str]) -> None:
        write("".join(f"{line}\n" for line in objects).encode(), self._target)


def write(data: bytes, target: int) -> None:
    """Write everything, or nothing more once nobody can read it: who prints goes on."""
    with contextlib.suppress(OSError):
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                # Another process has the same file, and does not want to wait for it.
                select.select([], [target], [])


def pass_on(pipes: set[_Pipe]) -> None:
    """Pass on what is printed until nobody can print any more."""
    asked = False
    with selectors.DefaultSelector() as selector:
        selector.register(CONTROL, selectors.EVENT_READ)
        for pipe in pipes:
            selector.register(pipe.source, selectors.EVENT_READ, pipe)
        while pipes:
            keys = [key for key, _ in selector.select(0 if asked else None)]
            ready = {key.data for key in keys if key.data}
            for pipe in ready:
                if not pipe.pass_on():
                    selector.unregister(pipe.source)
                    pipes.remove(pipe)
            if asked and not ready:
                _answer(pipes)
                asked = False
            elif len(keys) > len(ready):
                asked = _is_asked()
                if not asked:
                    selector.unregister(CONTROL)


def _is_asked() -> bool:
    """Return whether the worker has asked; if not, it has ended."""
    # Its end is an error here if it has not waited for an answer.
    with contextlib.suppress(OSError):
        return bool(os.read(CONTROL, 1))
    return False


def _answer(pipes: set[_Pipe]) -> None:
    for pipe in pipes:
        pipe.pass_on_rest()
    # The worker may have ended.
    with contextlib.suppress(OSError):
        os.write(CONTROL, b".")


def main(pairs: Sequence[str]) -> None:
    """Run ``pass_on`` between file descriptors, given as "5:1": read from 5, write to 1."""
    pass_on({_Pipe(*map(int, pair.split(":"))) for pair in pairs})


if __name__ == "__main__":
    main(sys.argv[1:])
