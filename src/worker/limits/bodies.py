"""What a body may hold of lists, and of keys that an operator has to allow."""

from collections.abc import Mapping
from typing import Any

from worker.errors import InvalidInput
from worker.limits.spelling import STRUCTURED
from worker.settings import Settings
from worker.validation import LONGEST_KEY

# Arguments for plugins of vLLM's sampling, and for what else reads them.
XARGS = "vllm_xargs"
# Encodings of embeddings that no answer of ours can hold, since answers are JSON.
BINARY = ("bytes", "bytes_only")

# Items of a list: vLLM's checks keep an error for every alternative of every wrong item.
MOST_ITEMS = 2_048
# How deep nested lists are checked: as deep as a message's parts.
DEPTH = 4
# Items of a response's input, which have the most alternatives: half a gigabyte for so many.
MOST_INPUT_ITEMS = 500
MOST_PARTS = 256


def check_lists(value: Any, name: str = "", depth: int = DEPTH) -> None:
    """Refuse lists that vLLM would take long to check; lists of token ids it checks quickly.

    Raises:
        InvalidInput: naming the key of the body.
    """
    if isinstance(value, list) and set(map(type, value)) == {int}:
        return
    if isinstance(value, list) and len(value) > MOST_ITEMS:
        message = f"{name}: {len(value):,} items, at most {MOST_ITEMS:,}"
        raise InvalidInput(message, param=name)
    if depth and isinstance(value, dict):
        for key, nested in value.items():
            check_lists(nested, name or key, depth - 1)
    elif depth and isinstance(value, list):
        for item in value:
            check_lists(item, name, depth - 1)


def check_response(items: Any) -> None:
    """Check the items of a response's input, and their parts.

    Raises:
        InvalidInput: there are too many.
    """
    if not isinstance(items, list):
        return
    if len(items) > MOST_INPUT_ITEMS:
        raise InvalidInput(f"input: at most {MOST_INPUT_ITEMS} items", param="input")
    objects = [item for item in items if isinstance(item, dict)]
    for parts in (item.get(key) for item in objects for key in ("content", "output")):
        if isinstance(parts, list) and len(parts) > MOST_PARTS:
            message = f"an item has {len(parts):,} parts, at most {MOST_PARTS}"
            raise InvalidInput(f"input: {message}", param="input")


def check_allowed(body: Mapping[str, Any], settings: Settings, *, by_priority: bool) -> None:
    """Refuse what only an operator can allow, and what no answer could hold.

    Raises:
        InvalidInput: naming the key, and the setting that allows it.
    """
    xargs = body.get(XARGS)
    for name in sorted(xargs.keys() - {*settings.allowed_xargs}) if isinstance(xargs, dict) else ():
        place = f"{XARGS}.{name[:LONGEST_KEY]}"
        message = "it is not among those that ALLOWED_XARGS names"
        raise InvalidInput(f"{place}: {message}", param=place)
    structured = body.get(STRUCTURED)
    for name in structured if isinstance(structured, dict) else ():
        if name.startswith("_"):
            raise InvalidInput(f"{STRUCTURED}: unknown key {name!r}", param=STRUCTURED)
    if body.get("priority") and not by_priority:
        message = "requests are answered in their order: SCHEDULING_POLICY=priority heeds it"
        raise InvalidInput(f"priority: {message}", param="priority")
    if body.get("encoding_format") in BINARY:
        message = "encoding_format: float or base64, since answers are JSON"
        raise InvalidInput(message, param="encoding_format")
