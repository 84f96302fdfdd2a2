"""Converts the text of values as operators write it, and redacts it for messages."""

import json
import os
import re
import shlex
from typing import Any

BOOLEANS = "one of 0/1, true/false, yes/no, on/off"

# Object storage that vLLM reads models from, and a repository of the hub.
STORAGE = r"(?:s3|gs|az)://\S+"
REPOSITORY = r"[\w.-]{1,96}(?:/[\w.-]{1,96})?(?::[\w.-]+)?"
NO_REPOSITORY = "a repository is written as owner/name, without address, quotes or spaces"

_SECRET = re.compile("(key|token|secret|password)$", re.IGNORECASE)

_WORDS = {"0": False, "false": False, "no": False, "off": False}
_WORDS |= {"1": True, "true": True, "yes": True, "on": True}


def boolean(value: Any) -> Any:
    """Read a boolean; unlike pydantic, without t, y and f.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool):
        return value
    try:
        return _WORDS[str(value).strip().lower()]
    except KeyError:
        raise ValueError(BOOLEANS) from None


def opposite(value: str) -> str:
    """Write the opposite of a boolean; return other text unchanged."""
    wanted = _WORDS.get(value.lower())
    return value if wanted is None else text(not wanted)


def says(value: str | None, wanted: bool) -> bool:
    """True if a value is written as this boolean; None and other text are neither."""
    return value is not None and _WORDS.get(value.lower()) is wanted


def text(value: Any) -> str:
    """Write a value as an operator would; blank for None, and for nothing in a list."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    several = isinstance(value, dict | list | tuple)
    return json.dumps(value, default=str) if several else str(value)


def scalar(value: str) -> Any:
    """Read a number, a boolean, null or any JSON; return other text unchanged."""
    if value.lower() in ("true", "false", "null"):
        value = value.lower()
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def items(value: str) -> list[str]:
    """Read a list, written as JSON or with commas."""
    if value[0] not in "[{":
        return [item.strip() for item in value.split(",") if item.strip()]
    parsed = json.loads(value)
    several = parsed if isinstance(parsed, list) else [parsed]
    return [item if isinstance(item, str) else json.dumps(item) for item in several]


def adapters(value: str) -> list[str]:
    """Read a list of adapters, which may also have spaces between, as on vLLM's command line."""
    several = items(value)
    return several if value[0] in "[{" else [word for item in several for word in item.split()]


def same(one: str, other: str) -> bool:
    """True if two texts mean the same value, as off and 0, or 1 and 1.0."""
    words = _WORDS.get(one.lower()), _WORDS.get(other.lower())
    return scalar(one) == scalar(other) or (words[0] is not None and words[0] is words[1])


def unfit(model: str) -> str | None:
    """Return why a text names neither a directory nor a repository; None if it may name one."""
    if is_directory(model) or re.fullmatch(STORAGE, model):
        return None
    if model.startswith(("/", "./", "../", "~")):
        return "there is no such directory; a repository is written as owner/name"
    if "@" in model:
        return "a repository is written as owner/name; its revision has a setting of its own"
    if not re.fullmatch(REPOSITORY, model):
        return NO_REPOSITORY
    return None


def is_directory(place: str) -> bool:
    """True if there is a directory of this name, which may be any text."""
    return os.path.isdir(place)  # noqa: PTH112 - Path.is_dir raises OSError for a name too long


def redact_setting(name: str, value: str) -> str:
    """Replace the value of a setting by stars if its name is that of a secret."""
    return "***" if name.endswith(("TOKEN", "KEY", "SECRET", "PASSWORD")) else value


def redact(value: str) -> str:
    """Leave out JSON, which may hold keys of other services, and logins in addresses."""
    return {"{": "{...}", "[": "[...]"}.get(value[:1]) or re.sub("//[^/@]+@", "//***@", value)


def redact_line(line: str) -> str:
    """Redact the values in a command line, and replace secrets by stars."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    redacted, secret = [], False
    for word in words:
        name, equals, value = word.partition("=")
        if secret and not word.startswith("-"):
            redacted.append("***")
            continue
        is_secret = bool(_SECRET.search(name))
        secret = is_secret and not equals
        shown = "***" if is_secret else redact(value)
        redacted.append(f"{name}={shown}" if equals else redact(word))
    return " ".join(redacted)
