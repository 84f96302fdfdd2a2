"""How values are written: as operators write them, and as messages may repeat them."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

BOOLEANS = "one of 0/1, true/false, yes/no, on/off"

_SECRET = re.compile("(key|token|secret|password)$", re.IGNORECASE)

_WORDS = {"0": False, "false": False, "no": False, "off": False}
_WORDS |= {"1": True, "true": True, "yes": True, "on": True}


def boolean(value: Any) -> Any:
    """Read a boolean as operators write it; pydantic alone would also take t, y and f.

    Raises:
        ValueError: it is written otherwise.
    """
    if isinstance(value, bool):
        return value
    try:
        return _WORDS[str(value).strip().lower()]
    except KeyError:
        raise ValueError(BOOLEANS) from None


def opposite(value: str) -> str:
    """Write the opposite of a boolean; what is none stays as it is, for whoever refuses it."""
    wanted = _WORDS.get(value.lower())
    return value if wanted is None else text(not wanted)


def says(value: str | None, wanted: bool) -> bool:
    """Tell whether a value is this boolean; nothing and nonsense are neither."""
    return value is not None and _WORDS.get(value.lower()) is wanted


def text(value: Any) -> str:
    """Write a value as an operator would write the setting; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    several = isinstance(value, dict | list | tuple)
    return json.dumps(value, default=str) if several else str(value)


def scalar(value: str) -> Any:
    """Read a number, a boolean or nothing where a text is one; JSON where it is any."""
    if value.lower() in ("true", "false", "null"):
        value = value.lower()
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def items(value: str) -> list[str]:
    """Read a list as operators write it: as JSON, or with commas between."""
    if value[0] not in "[{":
        return [item.strip() for item in value.split(",") if item.strip()]
    parsed = json.loads(value)
    several = parsed if isinstance(parsed, list) else [parsed]
    return [item if isinstance(item, str) else json.dumps(item) for item in several]


def adapters(value: str) -> list[str]:
    """Read adapters, which on vLLM's command line have spaces between."""
    several = items(value)
    return several if value[0] in "[{" else [each for item in several for each in item.split()]


def same(one: str, other: str) -> bool:
    """Tell whether two texts mean one value: off and 0, 1 and 1.0."""
    words = _WORDS.get(one.lower()), _WORDS.get(other.lower())
    return scalar(one) == scalar(other) or (words[0] is not None and words[0] is words[1])


def unfit(model: str) -> str | None:
    """Say why a text names neither a directory nor a repository, if it does not."""
    if directory(model) or re.fullmatch(r"(s3|gs|az)://\S+", model):
        return None
    if model.startswith(("/", "./", "../", "~")):
        return "there is no such directory; a repository is written as owner/name"
    if "@" in model:
        return "a repository is written as owner/name; its revision has a setting of its own"
    if not re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?(:[\w.-]+)?", model):
        return "a repository is written as owner/name, without address, quotes or spaces"
    return None


def directory(place: str) -> bool:
    """Tell whether there is a directory of this name, which may be none at all."""
    try:
        return Path(place).is_dir()
    except OSError:
        return False


def masked(name: str, value: str) -> str:
    """Hide the value of a secret setting."""
    return "***" if name.endswith(("TOKEN", "KEY", "SECRET", "PASSWORD")) else value


def shown(value: str) -> str:
    """Leave JSON out, which can hold keys to other services, and who logs in to an address."""
    return {"{": "{...}", "[": "[...]"}.get(value[:1]) or re.sub("//[^/@]+@", "//***@", value)


def hidden(line: str) -> str:
    """Hide the secrets in a command line, and JSON."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    told, secret = [], False
    for word in words:
        name, equals, value = word.partition("=")
        if secret and not word.startswith("-"):
            told.append("***")
            continue
        is_secret = bool(_SECRET.search(name))
        secret = is_secret and not equals
        told.append(f"{name}={'***' if is_secret else shown(value)}" if equals else shown(word))
    return " ".join(told)
