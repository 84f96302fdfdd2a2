"""What vLLM says of refused requests: messages that are safe to send, and nothing in the log.

Why vLLM's own do not do: ``SANITIZE`` and ``LOG`` in ``patches.py``.
"""

import logging
import re

from worker.engine.seam.locations import find
from worker.engine.seam.translation import translate
from worker.errors import LONGEST_MESSAGE

# Loggers whose warnings quote messages, or the URLs of images, which can hold credentials. The
# second is the first's name before vLLM 0.32.
QUOTING_LOGGERS = ("vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils", "vllm.connections")

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
TRACEBACK = re.compile(r'File "[^"\n]+", line \d+, in \S+')
PATH = re.compile(r"(?<!\w)/[\w./-]+")
ROOTS = frozenset("home lib mnt opt root runpod-volume srv tmp usr var workspace".split())


def sanitized(message: str) -> str:
    """Return the beginning of a message without memory addresses, tracebacks and paths."""
    message = ADDRESS.sub(">", message[:LONGEST_MESSAGE])
    return PATH.sub(_hidden, TRACEBACK.sub("", message)).strip()


def _hidden(path: re.Match[str]) -> str:
    """Hide the path of a file; routes, fractions and addresses of the web stay."""
    found = path[0]
    if found.startswith("//") and not found.startswith("///"):
        return found
    root, *rest = found.strip("/").split("/")
    return "<path>" if rest and (root in ROOTS or "." in rest[-1]) else found


def silence_refusals() -> None:
    """Keep refusals, and quoting warnings, out of whatever vLLM's log is written to."""
    logger: logging.Logger | None = logging.getLogger("vllm")
    while logger:
        for handler in logger.handlers:
            handler.addFilter(quotes_nothing)
        logger = logger.parent if logger.propagate else None


def quotes_nothing(record: logging.LogRecord) -> bool:
    """Return whether a line of vLLM's log is no refusal, and no warning that quotes a request."""
    if not record.name.startswith("vllm"):
        return True
    if record.name in QUOTING_LOGGERS and record.levelno < logging.ERROR:
        return False
    said = record.args if isinstance(record.args, tuple) else ()
    error = record.exc_info[1] if record.exc_info else None
    refusal = find("ErrorResponse")
    return not any(isinstance(one, refusal) or translate(one) for one in (*said, error))
