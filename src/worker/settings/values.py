"""How values are written: as operators write them, and as messages may repeat them."""

import json
import re
from typing import Any

BOOLEANS = "one of 0/1, true/false, yes/no, on/off"

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


def masked(name: str, value: str) -> str:
    """Hide the value of a secret setting."""
    return "***" if name.endswith(("TOKEN", "KEY", "SECRET", "PASSWORD")) else value


def shown(value: str) -> str:
    """Leave JSON out, which can hold keys to other services."""
    return {"{": "{...}", "[": "[...]"}.get(value[:1], value)


def hidden(line: str) -> str:
    """Hide the secrets in a command line, and JSON."""
    line = re.sub(r"(--\S*(?:key|token|secret|password)[= ]+)\S+", r"\1***", line)
    return re.sub(r"[\[{].*[\]}]", "{...}", line)
