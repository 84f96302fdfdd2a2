"""Prints text on the terminal, without characters that would control it; has the exit statuses."""

import json
import re
import sys
import unicodedata

# Exit statuses for a wrong command line and for an interrupted command.
USAGE_ERROR = 2
INTERRUPTED = 130
# Colors in the logs of workers. A terminal without them is as readable.
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def make_printable(text: str) -> str:
    """Return one line of text that others have chosen, with escapes for invisible characters.

    The escapes are those of JSON, so that JSON remains valid. Colors are removed.
    """
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else json.dumps(char)[1:-1]
        for char in _COLOR.sub("", text)
    )


def print_line(line: str) -> None:
    sys.stdout.write(f"{make_printable(line)}\n")


def print_text(text: str) -> None:
    """Print text to stdout, with its line breaks."""
    for line in text.split("\n"):
        print_line(line)


def print_message(message: object) -> None:
    """Print an error or a note to stderr, with its line breaks."""
    for line in str(message).split("\n"):
        sys.stderr.write(f"{make_printable(line)}\n")
