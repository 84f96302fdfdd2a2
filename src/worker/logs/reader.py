"""A process that forwards the output of other processes, as JSON objects or unchanged.

It is a process, not a thread, since a core is forked from a process that must have no threads. It
is run by its path in an interpreter without site-packages, so that it starts within milliseconds.
Therefore it imports the standard library only.
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

# The kinds of readers: convert output to JSON objects, or forward it and record its last error.
OBJECTS, ERRORS = "objects", "errors"
# Maximum bytes of a line; a longer line is split.
MAX_LINE_BYTES = 1_000_000
# Maximum characters of a core's line that are searched for an error, and maximum bytes of a
# recorded error.
MAX_SEARCHED_CHARS = 2_000

_ANSI_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Lines of vLLM start with the level; in a core, the name of the process precedes it. Lines of the
# worker start with the time and the level, lines of the SDK with the level.
_LEVEL = re.compile(r"(?:\([^()]*\) |[\d:,. -]+ )?(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)\b")
# Lines of C++ libraries start with a letter and the date: [W1122 10:00:00.
_LEVEL_LETTER = re.compile(r"\[?([DIWEF])\d{4} \d\d:")
_LEVEL_BY_LETTER = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
# vLLM repeats this prefix on each line of a record:
# (EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1].
_RECORD_PREFIX = re.compile(r"(?:\([^()]*\) )?[A-Z]+ [\d-]+ [\d:]+ \[[^\]]*\] ")

# The prefix of errors in vLLM's log, with or without the level and the parts after it.
_ERROR_PREFIX = re.compile(
    r"^(?:\([\w ]{1,40}(?:pid=\d{1,9})?\) ?)?(?:ERROR [^\[\n]{0,30}\[[^\]\n]{0,80}\] )?"
)
# The last line of a traceback: "torch.OutOfMemoryError: CUDA out of memory. Tried to ...".
_EXCEPTION_LINE = re.compile(
    r"^(?:[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt)|Exception)(?:: |$)"
)
# Errors that vLLM raises after a child process has failed and printed the actual error. The child
# is the core, or a process of the core for one GPU.
WRAPPER_ERRORS = (
    "RuntimeError: Engine core initialization failed",
    "Exception: WorkerProc initialization failed due to an exception",
    "RuntimeError: Worker failed with error '",
    "RuntimeError: Executor failed.",
)
# A traceback's first line, and a frame of vLLM's loader. The last such frame of a traceback shows
# whether vLLM was creating the model (initialize_model) or reading its weights.
_TRACEBACK_START = "Traceback (most recent call last)"
_LOADER_FRAME = re.compile(r'^File "[^"\n]+", line \d+, in (initialize_model|load_weights)$')
# Errors that the other processes of a core log after one of them has exited. They don't replace a
# recorded out-of-memory error.
_LOST_PEER = re.compile(r"Dist\w*Error: |NCCL|Connection (?:closed by peer|reset by peer|refused)")
_OOM_ERROR = re.compile(r"OutOfMemoryError|out of memory")
# Prefixes of messages about crashes of the interpreter or of native libraries.
_CRASHES = ("Fatal Python error: ", "terminate called ", "CUDA error: ", "free(): ", "malloc(): ")


def format_timestamp(seconds: float) -> str:
    """Format a Unix timestamp as ISO 8601, in UTC and with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def format_json_line(text: str) -> str:
    """Convert a line to JSON with time, level and message; JSON with a message keeps its keys."""
    values = {"time": format_timestamp(time.time()), "level": "INFO"}
    if text.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            fields = json.loads(text)
            if "message" in fields:
                return json.dumps(values | fields, allow_nan=False)
    if level := _LEVEL.match(text):
        values["level"] = level[1]
    elif match := _LEVEL_LETTER.match(text):
        values["level"] = _LEVEL_BY_LETTER[match[1]]
    return json.dumps({**values, "message": text})


def find_error(line: str) -> str | None:
    """Return the error in a line without the log's prefix, or None if the line has no error.

    A line with one of ``WRAPPER_ERRORS`` counts as a line without an error.
    """
    text = _ERROR_PREFIX.sub("", line[:MAX_SEARCHED_CHARS], count=1).strip()
    if text.startswith(WRAPPER_ERRORS):
        return None
    return text if _EXCEPTION_LINE.match(text) or text.startswith(_CRASHES) else None


class JSONConverter:
    """Converts the output that is written to one file descriptor to JSON objects."""

    def __init__(self) -> None:
        self._partial_line = b""
        # The text of vLLM's current record so far, and the prefix of its lines. The text contains
        # the prefix only once, at its start.
        self._record = ""
        self._prefix = ""

    def feed(self, data: bytes) -> bytes:
        """Add output; return the complete objects, one on each line."""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if len(self._partial_line) >= MAX_LINE_BYTES:
            lines.append(self._partial_line)
            self._partial_line = b""
        texts = [line.decode(errors="replace") for line in lines]
        return b"".join(object_ for text in texts for object_ in self._convert_line(text))

    def flush(self) -> bytes:
        """Return the last objects: the current record and the incomplete line."""
        return self.feed(b"\n") + b"".join(self._convert_line(""))

    def _convert_line(self, line: str) -> Iterator[bytes]:
        line = _ANSI_ESCAPES.sub("", line)
        # As on a terminal, a carriage return starts the line again; progress bars use it.
        text = line.rstrip("\r").rpartition("\r")[2]
        prefix = match[0] if (match := _RECORD_PREFIX.match(text)) else ""
        if self._record and prefix == self._prefix and len(self._record) < MAX_LINE_BYTES:
            self._record += f"\n{text.removeprefix(prefix)}"
        else:
            yield from self._emit_record()
            self._record, self._prefix = text, prefix
        # All lines of vLLM's records except the last end with a carriage return.
        if not (prefix and line.endswith("\r")):
            yield from self._emit_record()

    def _emit_record(self) -> Iterator[bytes]:
        record, self._record = self._record.rstrip(), ""
        if record:
            yield format_json_line(record).encode() + b"\n"


class ErrorRecorder:
    """Forwards a core's output unchanged and records the output's last error.

    Output is forwarded in whole lines, except for long lines. Errors that follow from an
    out-of-memory error in another process of the core don't replace it. The file of
    ``error_fd`` starts with two lines: the last error, and the function of vLLM's loader that
    raised it, which is empty for other errors.
    """

    def __init__(self, error_fd: int) -> None:
        self._error_fd = error_fd
        self._partial_line = b""
        # The function of the last of ``_LOADER_FRAME`` in the current traceback.
        self._loader_function = ""

    def feed(self, data: bytes) -> bytes:
        """Add output; return the complete lines, and an incomplete line if it is long."""
        data = self._partial_line + data
        # Progress bars end their lines with a carriage return.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > MAX_SEARCHED_CHARS:
            end = len(data)
        complete_lines, self._partial_line = data[:end], data[end:]
        for line in complete_lines.splitlines():
            text = line.decode(errors="replace")
            content = _ERROR_PREFIX.sub("", text[:MAX_SEARCHED_CHARS], count=1).strip()
            if content.startswith(_TRACEBACK_START):
                self._loader_function = ""
            elif frame := _LOADER_FRAME.match(content):
                self._loader_function = frame[1]
            elif error := find_error(text):
                self._record_error(error)
        return complete_lines

    def flush(self) -> bytes:
        """Return the incomplete line, without searching it for an error."""
        rest, self._partial_line = self._partial_line, b""
        return rest

    def _record_error(self, error: str) -> None:
        previous = os.pread(self._error_fd, MAX_SEARCHED_CHARS, 0).partition(b"\n")[0]
        if not (_LOST_PEER.search(error) and _OOM_ERROR.search(previous.decode(errors="replace"))):
            # If the disk is full, the error is not recorded.
            with contextlib.suppress(OSError):
                lines = (error.encode()[:MAX_SEARCHED_CHARS], self._loader_function.encode(), b"")
                os.pwrite(self._error_fd, b"\n".join(lines), 0)


class PipeForwarder:
    """Forwards a pipe's output to a file descriptor, after a handler has processed it."""

    def __init__(self, source: int, target: int, handler: JSONConverter | ErrorRecorder) -> None:
        self.source = source
        self._target = target
        self._handler = handler

    def forward(self) -> bool:
        """Forward new output; return False at the end of the output."""
        data = os.read(self.source, 65_536)
        write_all(self._handler.feed(data) if data else self._handler.flush(), self._target)
        return bool(data)

    def forward_rest(self) -> None:
        write_all(self._handler.flush(), self._target)


def write_all(data: bytes, target: int) -> None:
    """Write all data, or stop without an error if the target can't be written to."""
    with contextlib.suppress(OSError):
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                # Another process has made the shared target non-blocking.
                select.select([], [target], [])


def forward_all(pipes: set[PipeForwarder], selector: selectors.BaseSelector, control: int) -> None:
    """Forward output until all writers have closed their pipes; flush at the worker's request."""
    is_flush_requested = False
    while pipes:
        keys = [key for key, _ in selector.select(0 if is_flush_requested else None)]
        ready = {key.data for key in keys if key.data}
        for pipe in ready:
            if not pipe.forward():
                selector.unregister(pipe.source)
                pipes.remove(pipe)
        if is_flush_requested and not ready:
            for pipe in pipes:
                pipe.forward_rest()
            # Writing the confirmation fails if the worker has exited.
            with contextlib.suppress(OSError):
                os.write(control, b".")
            is_flush_requested = False
        elif len(keys) > len(ready):
            # A byte requests a flush. The end of the socket means that the worker has exited, and
            # so does an error, if the worker has not read a confirmation.
            is_flush_requested = False
            with contextlib.suppress(OSError):
                is_flush_requested = bool(os.read(control, 1))
            if not is_flush_requested:
                selector.unregister(control)


def main(kind: str, extra_fd: int, fd_pairs: Sequence[str]) -> None:
    """Run ``forward_all`` between pairs of file descriptors.

    Args:
        kind: ``OBJECTS`` or ``ERRORS``.
        extra_fd: For objects, a socket to the worker: a byte from the worker requests a flush, and
            a byte to the worker confirms it. For errors, the file for the last error.
        fd_pairs: Pairs like "5:1": read from 5, write to 1.
    """
    pipes = set()
    with selectors.DefaultSelector() as selector:
        for pair in fd_pairs:
            source, target = map(int, pair.split(":"))
            pipe = PipeForwarder(
                source, target, ErrorRecorder(extra_fd) if kind == ERRORS else JSONConverter()
            )
            selector.register(pipe.source, selectors.EVENT_READ, pipe)
            pipes.add(pipe)
        if kind == OBJECTS:
            selector.register(extra_fd, selectors.EVENT_READ)
        forward_all(pipes, selector, extra_fd)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
