"""Conversion of setting values from and to strings, and redaction of values in messages."""

import json
import os
import re
import shlex
from typing import Any
from urllib.parse import unquote

ACCEPTED_BOOLEANS = "one of 0/1, true/false, yes/no, on/off"

# Patterns of URLs of object storage that vLLM can load models from, and of names of repositories on
# the hub, with an optional tag.
OBJECT_STORAGE_PATTERN = r"(?:s3|gs|az)://\S+"
REPOSITORY_PATTERN = r"[\w.-]{1,96}(?:/[\w.-]{1,96})?(?::[\w.-]+)?"
REPOSITORY_ADVICE = "a repository is written as owner/name, without address, quotes or spaces"

_SECRET_NAME = re.compile("(key|token|secret|password)$", re.IGNORECASE)

_BOOLEAN_WORDS = {"0": False, "false": False, "no": False, "off": False}
_BOOLEAN_WORDS |= {"1": True, "true": True, "yes": True, "on": True}


def parse_boolean(value: Any) -> Any:
    """Parse a boolean; unlike pydantic, don't accept t, y and f."""
    if isinstance(value, bool):
        return value
    try:
        return _BOOLEAN_WORDS[str(value).strip().lower()]
    except KeyError:
        raise ValueError(ACCEPTED_BOOLEANS) from None


def negate_boolean(value: str) -> str:
    """Return the opposite of a boolean as a string; return other strings unchanged."""
    parsed = _BOOLEAN_WORDS.get(value.lower())
    return value if parsed is None else format_value(not parsed)


def equals_boolean(value: str | None, expected: bool) -> bool:
    """Return whether a string represents the expected boolean; False for None and other strings."""
    return value is not None and _BOOLEAN_WORDS.get(value.lower()) is expected


def format_value(value: Any) -> str:
    """Format a value as an operator would write it; blank for None and for an empty tuple."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    is_collection = isinstance(value, dict | list | tuple)
    return json.dumps(value, default=str) if is_collection else str(value)


def parse_scalar(value: str) -> Any:
    """Parse a number, a boolean, null or any JSON; return other strings unchanged."""
    if value.lower() in ("true", "false", "null"):
        value = value.lower()
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def parse_list(value: str) -> list[str]:
    """Parse a list that is written as JSON or with commas; the value must not be blank.

    A JSON object is a list with one item. JSON items other than strings are returned as JSON.
    """
    if value[0] not in "[{":
        return [item.strip() for item in value.split(",") if item.strip()]
    parsed = json.loads(value)
    values = parsed if isinstance(parsed, list) else [parsed]
    return [item if isinstance(item, str) else json.dumps(item) for item in values]


def parse_headers(value: str) -> dict[str, str]:
    """Parse headers as OpenTelemetry writes them: ``name=value``, with commas and ``%20``."""
    pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError("pairs name=value, separated by commas")
    return {name.strip().lower(): unquote(text.strip()) for name, _, text in pairs}


def split_adapter_list(value: str) -> list[str]:
    """Parse a list of adapters, which spaces may also separate, as on vLLM's command line."""
    entries = parse_list(value)
    return entries if value[0] in "[{" else [word for item in entries for word in item.split()]


def is_same_value(first: str, second: str) -> bool:
    """Return whether two strings mean the same value, such as "off" and "0", or "1" and "1.0"."""
    words = _BOOLEAN_WORDS.get(first.lower()), _BOOLEAN_WORDS.get(second.lower())
    return parse_scalar(first) == parse_scalar(second) or (
        words[0] is not None and words[0] is words[1]
    )


def model_name_problem(model: str) -> str | None:
    """Return why a string can't be a directory, repository or object storage URL, or None."""
    if is_directory(model) or re.fullmatch(OBJECT_STORAGE_PATTERN, model):
        return None
    if model.startswith(("/", "./", "../", "~")):
        return "there is no such directory; a repository is written as owner/name"
    if "@" in model:
        return "a repository is written as owner/name; its revision has a setting of its own"
    if not re.fullmatch(REPOSITORY_PATTERN, model):
        return REPOSITORY_ADVICE
    return None


def is_directory(path: str) -> bool:
    """Return whether a string, which may be any text, is the path of an existing directory."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises OSError for a long name


def redact_by_setting_name(name: str, value: str) -> str:
    """Mask all of a secret, by its setting's name, and the credentials in URLs of any value."""
    secrets = ("TOKEN", "KEY", "SECRET", "PASSWORD", "OTLP_HEADERS")
    return "***" if name.endswith(secrets) else redact_url_credentials(value)


def redact_url_credentials(value: str) -> str:
    """Mask user and password in URLs, also if the password has characters that need escapes."""
    return re.sub(r"//(?:[^/\s]*:\S*|[^/\s]+)@", "//***@", value)


def redact_json_and_urls(value: str) -> str:
    """Mask JSON, which may contain keys of other services, and credentials in URLs."""
    return {"{": "{...}", "[": "[...]"}.get(value[:1]) or redact_url_credentials(value)


def redact_command_line(line: str) -> str:
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    redacted, next_is_secret = [], False
    for word in words:
        name, equals, value = word.partition("=")
        if next_is_secret and not word.startswith("-"):
            redacted.append("***")
            continue
        is_secret = bool(_SECRET_NAME.search(name))
        next_is_secret = is_secret and not equals
        redacted_value = "***" if is_secret else redact_json_and_urls(value)
        redacted.append(f"{name}={redacted_value}" if equals else redact_json_and_urls(word))
    return " ".join(redacted)
