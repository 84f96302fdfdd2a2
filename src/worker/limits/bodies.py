"""Limits for lists in request bodies, and checks of keys that an operator has to allow."""

from collections.abc import Mapping
from typing import Any

from worker.errors import InvalidInput
from worker.limits.spelling import STRUCTURED_OUTPUTS
from worker.settings import Settings
from worker.validation import MAX_KEY_LENGTH

# Key of custom arguments for sampling plugins and other extensions of vLLM.
VLLM_XARGS = "vllm_xargs"
# Encodings of embeddings that need a binary response. The worker's responses are JSON.
BINARY_ENCODINGS = ("bytes", "bytes_only")

# Maximum number of items in a list. vLLM keeps an error for each possible type of each wrong item.
MAX_LIST_ITEMS = 2_048
# Levels of nested objects and lists to check: enough for the parts of a message.
MAX_CHECK_DEPTH = 4
# Maximum number of items in the ``input`` of ``/v1/responses``, and of parts in each item. They
# have the most possible types: the validation errors of 500 items take half a gigabyte.
MAX_INPUT_ITEMS = 500
MAX_ITEM_PARTS = 256


def check_list_lengths(value: Any, name: str = "", depth: int = MAX_CHECK_DEPTH) -> None:
    """Refuse lists that vLLM would take long to validate, except lists of token ids.

    ``name`` is the body's key that contains the value; empty for the body itself. ``depth`` is the
    number of levels of objects and lists inside the value that are also checked.

    Raises:
        InvalidInput: If a list is too long; the error names its key in the body.
    """
    if isinstance(value, list) and set(map(type, value)) == {int}:
        return
    if isinstance(value, list) and len(value) > MAX_LIST_ITEMS:
        message = f"{name}: {len(value):,} items, at most {MAX_LIST_ITEMS:,}"
        raise InvalidInput(message, param=name)
    if depth and isinstance(value, dict):
        for key, nested in value.items():
            check_list_lengths(nested, name or key, depth - 1)
    elif depth and isinstance(value, list):
        for item in value:
            check_list_lengths(item, name, depth - 1)


def check_responses_input(items: Any) -> None:
    """Check the number of items in ``input`` of ``/v1/responses``, and of parts in each item.

    Raises:
        InvalidInput: If there are too many items or parts.
    """
    if not isinstance(items, list):
        return
    if len(items) > MAX_INPUT_ITEMS:
        raise InvalidInput(f"input: at most {MAX_INPUT_ITEMS} items", param="input")
    objects = [item for item in items if isinstance(item, dict)]
    for parts in (item.get(key) for item in objects for key in ("content", "output")):
        if isinstance(parts, list) and len(parts) > MAX_ITEM_PARTS:
            message = f"an item has {len(parts):,} parts, at most {MAX_ITEM_PARTS}"
            raise InvalidInput(f"input: {message}", param="input")


def check_restricted_keys(
    body: Mapping[str, Any], settings: Settings, *, has_priorities: bool
) -> None:
    """Refuse keys that need the operator's permission, vLLM's private keys, and binary encodings.

    Raises:
        InvalidInput: If the body has such a key; the error names it and any setting that allows it.
    """
    arguments = body.get(VLLM_XARGS)
    names = arguments.keys() - {*settings.allowed_xargs} if isinstance(arguments, dict) else ()
    for name in sorted(names):
        place = f"{VLLM_XARGS}.{name[:MAX_KEY_LENGTH]}"
        message = "it is not among those that ALLOWED_XARGS names"
        raise InvalidInput(f"{place}: {message}", param=place)
    structured = body.get(STRUCTURED_OUTPUTS)
    for name in structured if isinstance(structured, dict) else ():
        if name.startswith("_"):
            message = f"{STRUCTURED_OUTPUTS}: unknown key {name!r}"
            raise InvalidInput(message, param=STRUCTURED_OUTPUTS)
    if body.get("priority") and not has_priorities:
        message = "requests are answered in their order: SCHEDULING_POLICY=priority uses it"
        raise InvalidInput(f"priority: {message}", param="priority")
    if body.get("encoding_format") in BINARY_ENCODINGS:
        message = "encoding_format: float or base64, since answers are JSON"
        raise InvalidInput(message, param="encoding_format")
