"""Sets up logging as text or as JSON lines, for all output of the process (``LOG_FORMAT``).

The worker's own records are formatted here. All other output (of vLLM, its core, the SDK, C++
libraries) goes through pipes to a child, ``reader``, which converts it to JSON objects: a process,
not a thread, because the engine's core is forked from a process that must have no threads.
"""

import atexit
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from worker.children import Child, StopMode, script_command
from worker.logs import reader

log = logging.getLogger("worker")

TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# Maximum seconds to wait for the reader at exit. It needs milliseconds, unless the machine is busy.
FLUSH_TIMEOUT_S = 5.0


# Maximum characters of a record's message, and of its traceback. A request of some kilobytes may
# cause a traceback of megabytes: of a deep recursion, or of an error for each part of a path.
MAX_CHARACTERS = 32_000
# Maximum errors of a traceback that raised each other. The last ones are formatted.
MAX_CHAINED_ERRORS = 10

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class TextFormatter(logging.Formatter):
    """Formats a record as text of a limited length."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = _shorten(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802 - logging's name
        chain = list(_chain(ei[1]))
        if len(chain) <= MAX_CHAINED_ERRORS:
            return _shorten(super().formatException(ei))
        with _without_chain(chain[MAX_CHAINED_ERRORS - 1]):
            text = _shorten(super().formatException(ei))
        return f"[{len(chain) - MAX_CHAINED_ERRORS:,} earlier errors are left out]\n{text}"


class JsonFormatter(TextFormatter):
    """Formats a record as a JSON object; ``extra={"fields": {...}}`` adds keys."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": reader.format_timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _shorten(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, default=str)


@dataclass
class _RunningReader:
    child: Child
    control: socket.socket
    # Number of flush requests without confirmation so far; more than one if a flush timed out.
    unanswered_requests: int = 0

    def flush(self) -> None:
        """Wait for the reader; raise ``OSError`` if it was killed, or if nothing reads the log."""
        self.control.send(b".")
        self.unanswered_requests += 1
        while self.unanswered_requests and (answers := self.control.recv(self.unanswered_requests)):
            self.unanswered_requests -= len(answers)


# The reader that ``set_up`` has started; empty if the log is text.
_readers: list[_RunningReader] = []


def set_up(log_format: str, streams: Sequence[int]) -> None:
    """Set up Python's logging; with "json", convert all output of this process to JSON objects.

    ``streams`` are the file descriptors whose output is converted: 1, 2 or both. The output of
    child processes is converted, too, if they start after this call.
    """
    handler = logging.StreamHandler()
    if log_format != "json":
        handler.setFormatter(TextFormatter(TEXT_FORMAT))
        logging.basicConfig(handlers=[handler])
        return
    control, reader_control = socket.socketpair()
    control.settimeout(FLUSH_TIMEOUT_S)
    _readers.append(
        _RunningReader(
            redirect_to_reader(streams, streams, reader.OBJECTS, reader_control.fileno()), control
        )
    )
    reader_control.close()
    # The callback is for failed startups. Later, ``handler.exit_process`` exits without callbacks.
    atexit.register(flush)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(True)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that raised it, as in its traceback, the last one first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context


@contextlib.contextmanager
def _without_chain(error: BaseException) -> Iterator[None]:
    """Hide the errors that raised this one; ``traceback`` has no limit for them."""
    cause, context, suppress = error.__cause__, error.__context__, error.__suppress_context__
    error.__cause__ = error.__context__ = None
    try:
        yield
    finally:
        error.__cause__, error.__context__, error.__suppress_context__ = cause, context, suppress


def _shorten(text: str) -> str:
    """Leave out the middle of a long text; the end of a traceback says most."""
    if len(text) <= MAX_CHARACTERS:
        return text
    kept = MAX_CHARACTERS // 4
    count = len(text) - MAX_CHARACTERS
    return f"{text[:kept]}\n[{count:,} characters are left out]\n{text[kept + count :]}"


def redirect_to_reader(
    streams: Sequence[int], targets: Sequence[int], kind: str, extra_fd: int
) -> Child:
    """Start a reader process, and redirect ``streams``, file descriptors of this process, to it.

    The reader writes to ``targets``, one for each stream. See ``reader.main`` for ``kind`` and
    ``extra_fd``.
    """
    pipes = [os.pipe() for _ in streams]
    sources = [read_end for read_end, write_end in pipes]
    pairs = [f"{read_end}:{target}" for read_end, target in zip(sources, targets, strict=True)]
    command = script_command(reader.__file__, kind, str(extra_fd), *pairs)
    child = Child(command, StopMode.WAIT_FOR_WRITERS, pass_fds=[extra_fd, *sources, *targets])
    for stream, (read_end, write_end) in zip(streams, pipes, strict=True):
        os.close(read_end)
        os.dup2(write_end, stream)
        os.close(write_end)
    return child


def flush() -> None:
    """Wait until all output has been written, for up to ``FLUSH_TIMEOUT_S``.

    Call this before the process exits: when a container's first process exits, the reader is
    killed, too, and output that it has not written is lost.
    """
    for stream in (sys.stdout, sys.stderr):
        # A signal may have interrupted a write, or the reader of the stream may have exited.
        with contextlib.suppress(RuntimeError, OSError):
            stream.flush()
    for running_reader in _readers:
        with contextlib.suppress(OSError):
            running_reader.flush()


def write_failure(message: str) -> None:
    """Write why the worker exits, as text or as a JSON object."""
    if _readers:
        log.critical("%s", message)
    else:
        sys.stderr.write(f"{message}\n")
