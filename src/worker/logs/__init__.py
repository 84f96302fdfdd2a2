"""The log as text, or as one JSON object a line, whoever prints it (``LOG_FORMAT``).

The worker's own records are formatted here. What else is printed (by vLLM, its core, the SDK, C++
libraries) goes through pipes to a child process, ``reader``, which makes objects of it. That is no
thread, because the engine's core is forked from a process that must have none.
"""

import atexit
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from worker.children import Child, Ending, script
from worker.logs import reader

log = logging.getLogger("worker")

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# Seconds that an end waits for the reader, which needs milliseconds unless the machine is busy.
PATIENCE_S = 5.0


class JsonFormatter(logging.Formatter):
    """Formats a record as an object; ``extra={"fields": {...}}`` adds to its keys."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": reader.timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, default=str)


@dataclass
class _Reader:
    child: Child
    control: socket.socket
    # Questions that have no answer yet: an end does not wait for ever.
    asked: int = 0

    def flush(self) -> None:
        """Wait until it has written everything.

        Raises:
            OSError: it was killed, or it waits for whoever reads the log.
        """
        self.control.send(b".")
        self.asked += 1
        while self.asked and (answers := self.control.recv(self.asked)):
            self.asked -= len(answers)


# The reader of this process, if there is one.
_readers: list[_Reader] = []


def set_up(log_format: str, streams: Sequence[int]) -> None:
    """Set up Python's logging; with "json", make objects of all that this process prints.

    What its children print, too: call this before the first of them.

    Args:
        log_format: "json"; anything else is text.
        streams: file descriptors to make objects of, 1 and 2 or only one of them.
    """
    if log_format != "json":
        logging.basicConfig(format=TEXT)
        return
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    _readers.append(_Reader(redirect(streams, streams, reader.OBJECTS, theirs.fileno()), ours))
    theirs.close()
    # After a failed start; `leave` ends the process without this.
    atexit.register(flush)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(True)


def redirect(streams: Sequence[int], targets: Sequence[int], kind: str, fd: int) -> Child:
    """Start a reader of what is printed to some file descriptors from now on.

    Args:
        streams: the file descriptors.
        targets: where the reader writes what each of them gets.
        kind: as of ``reader.main``.
        fd: likewise.
    """
    pipes = [os.pipe() for _ in streams]
    sources = [source for source, _ in pipes]
    pairs = [f"{source}:{target}" for source, target in zip(sources, targets, strict=True)]
    command = script(reader.__file__, kind, str(fd), *pairs)
    child = Child(command, Ending.AFTER_WRITERS, pass_fds=[fd, *sources, *targets])
    for stream, (source, sink) in zip(streams, pipes, strict=True):
        os.close(source)
        os.dup2(sink, stream)
        os.close(sink)
    return child


def flush() -> None:
    """Wait until all that was printed is where it belongs, for some seconds at most.

    The end of a container's first process ends the reader, too.
    """
    for stream in (sys.stdout, sys.stderr):
        # A signal may have come in the middle of a write; nobody may read the stream any more.
        with contextlib.suppress(RuntimeError, OSError):
            stream.flush()
    for running in _readers:
        with contextlib.suppress(OSError):
            running.flush()


def write_failure(message: str) -> None:
    """Write why the worker ends: as it is, or as one object."""
    if _readers:
        log.critical("%s", message)
    else:
        sys.stderr.write(f"{message}\n")
