"""Safe messages for requests that vLLM refuses, and filters for vLLM's log.

``patches.py`` (``SANITIZE``, ``LOG``) describes the problems of vLLM's own messages and logs.
"""

import logging
import re

from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.translation import translate_error
from worker.errors import MAX_MESSAGE_LENGTH

# Beginnings of the names of loggers whose warnings quote messages, or the URLs of images, which can
# contain credentials. Before vLLM 0.32, the first one was the second; 0.33 has loggers below it.
QUOTING_LOGGERS = ("vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils", "vllm.connections")

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
TRACEBACK = re.compile(r'File "[^"\n]+", line \d+, in \S+')
PATH = re.compile(r"(?<!\w)/[\w./-]+")
ROOT_FOLDERS = frozenset("home lib mnt opt root runpod-volume srv tmp usr var workspace".split())


def sanitize_message(message: str) -> str:
    """Return the beginning of a message without memory addresses, tracebacks and paths."""
    message = ADDRESS.sub(">", message[:MAX_MESSAGE_LENGTH])
    return PATH.sub(_hide_path, TRACEBACK.sub("", message)).strip()


def _hide_path(path: re.Match[str]) -> str:
    """Replace the path of a file with a placeholder; routes, fractions and web addresses stay."""
    text = path[0]
    if text.startswith("//") and not text.startswith("///"):
        return text
    root, *rest = text.strip("/").split("/")
    return "<path>" if rest and (root in ROOT_FOLDERS or "." in rest[-1]) else text


def silence_refusals() -> None:
    """Filter refusals, and warnings that quote requests, out of vLLM's log."""
    logger: logging.Logger | None = logging.getLogger("vllm")
    while logger:
        for handler in logger.handlers:
            handler.addFilter(is_loggable)
        logger = logger.parent if logger.propagate else None


def is_loggable(record: logging.LogRecord) -> bool:
    """Return whether a log record is neither a refusal nor a warning that quotes a request."""
    if not record.name.startswith("vllm"):
        return True
    if record.name.startswith(QUOTING_LOGGERS) and record.levelno < logging.ERROR:
        return False
    arguments = record.args if isinstance(record.args, tuple) else ()
    error = record.exc_info[1] if record.exc_info else None
    refusal = import_from_vllm("ErrorResponse")
    return not any(
        isinstance(value, refusal) or translate_error(value) for value in (*arguments, error)
    )
