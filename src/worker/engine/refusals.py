"""The messages of vLLM's server, made safe in a time that does not grow with what they quote.

vLLM takes paths out of a message with a regular expression that needs minutes for a name of 40 KB
that a message quotes, and holds the whole process meanwhile.
"""

import re
import sys

from worker.engine.locations import optional
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
