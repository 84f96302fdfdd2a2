"""What vLLM says of refused requests: messages that are safe to send, and nothing in the log.

vLLM takes paths out of a message with a regular expression that needs minutes for a name of 40 KB
that a message quotes, and holds the whole process meanwhile. It logs some refusals with a traceback
and the request's words.
"""

import logging
import re
import sys

from worker.engine.seam.locations import find, optional
from worker.engine.seam.translation import translate
from worker.errors import LONGEST_MESSAGE

# vLLM's function, which its modules import by name.
NAME = "sanitize_message"

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
TRACEBACK = re.compile(r'File "[^"\n]+", line \d+, in \S+')
PATH = re.compile(r"(?<!\w)/[\w./-]+")
ROOTS = frozenset("home lib mnt opt root runpod-volume srv tmp usr var workspace".split())


def shorten_messages() -> None:
    """Put ``sanitized`` into vLLM's place for it, in every module that has it."""
    for original in optional(NAME):
        for name, module in [*sys.modules.items()]:
            if name.startswith("vllm.") and vars(module).get(NAME) is original:
                setattr(module, NAME, sanitized)


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
    """Keep refusals out of whatever vLLM's log is written to, at every level."""
    logger: logging.Logger | None = logging.getLogger("vllm")
    while logger:
        for handler in logger.handlers:
            handler.addFilter(is_no_refusal)
        logger = logger.parent if logger.propagate else None


def is_no_refusal(record: logging.LogRecord) -> bool:
    """Return whether a line of vLLM's log is about anything else than a refused request."""
    if not record.name.startswith("vllm"):
        return True
    told = record.args if isinstance(record.args, tuple) else ()
    error = record.exc_info[1] if record.exc_info else None
    return not any(_is_refusal(one) for one in (*told, error))


def _is_refusal(told: object) -> bool:
    if isinstance(told, Exception):
        return translate(told) is not None
    return isinstance(told, find("ErrorResponse"))
