"""Tools, the names of functions, and values for chat templates: bounded on both paths. Pure.

Names are quoted in vLLM's messages, which it searches with regular expressions; templates and
parsers go through tools and values again and again.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from worker.errors import InvalidInput

MOST_TOOLS = 128
NAME = re.compile(r"[\w.-]{1,64}")

MOST_VALUES = 32
VALUE_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
# Arguments of the functions that vLLM hands these values to, and functions that templates call:
# where a template's text becomes tokens at once, max_length and padding could ask for billions.
RESERVED = frozenset(
    """
    chat_template conversation conversations kwargs max_length messages model_config padding
    raise_exception return_assistant_tokens_mask return_dict return_tensors self strftime_now
    tokenize tokenizer tokenizer_kwargs tools truncation trust_remote_code
    """.split()
)

KWARGS = "chat_template_kwargs"


def check_tools(values: Mapping[str, Any]) -> None:
    """Check what an input or a body has of tools, calls of them, and values for a chat template.

    Raises:
        InvalidInput: naming the field.
    """
    tools = values.get("tools")
    if isinstance(tools, list) and len(tools) > MOST_TOOLS:
        raise InvalidInput(f"tools: {len(tools):,} of them, at most {MOST_TOOLS}", param="tools")
    for place, name in _names(values):
        if isinstance(name, str) and not NAME.fullmatch(name):
            message = f"{len(name):,} characters; 1 to 64 letters, digits and ._- are a name"
            raise InvalidInput(f"{place}: {message}", param=place)
    _check_kwargs(values.get(KWARGS))


def _check_kwargs(kwargs: Any) -> None:
    if not isinstance(kwargs, dict):
        return
    if len(kwargs) > MOST_VALUES:
        raise InvalidInput(f"{KWARGS}: {len(kwargs):,} keys, at most {MOST_VALUES}", param=KWARGS)
    for name in kwargs:
        if not VALUE_NAME.fullmatch(name):
            message = "a key is a name of at most 64 letters, digits and _"
            raise InvalidInput(f"{KWARGS}: {message}", param=KWARGS)
        if name in RESERVED:
            place = f"{KWARGS}.{name}"
            raise InvalidInput(f"{place}: not in a request: vLLM sets it itself", param=place)


def _names(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the place and the name of each function in the forms of OpenAI and Anthropic."""
    for place in ("tools", "functions"):
        for index, tool in enumerate(_objects(values.get(place))):
            yield from _of_tool(f"{place}.{index}", tool)
    for place in ("tool_choice", "function_call"):
        for choice in _objects([values.get(place)]):
            yield from _of_tool(place, choice)
            for index, tool in enumerate(_objects(choice.get("tools"))):
                yield from _of_tool(f"{place}.tools.{index}", tool)
    for place in ("messages", "input"):
        for index, message in enumerate(_objects(values.get(place))):
            yield from _of_message(f"{place}.{index}", message)


def _of_tool(place: str, tool: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield f"{place}.name", tool.get("name")
    for function in _objects([tool.get("function")]):
        yield f"{place}.function.name", function.get("name")


def _of_message(place: str, message: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names of calls in a message; the name of a person who speaks is none of them."""
    for index, call in enumerate(_objects(message.get("tool_calls"))):
        yield from _of_tool(f"{place}.tool_calls.{index}", call)
    for call in _objects([message.get("function_call")]):
        yield f"{place}.function_call.name", call.get("name")
    if message.get("type") == "function_call":
        yield f"{place}.name", message.get("name")
    for index, part in enumerate(_objects(message.get("content"))):
        if part.get("type") == "tool_use":
            yield f"{place}.content.{index}.name", part.get("name")


def _objects(values: Any) -> Iterator[Mapping[str, Any]]:
    listed = values if isinstance(values, list) else []
    return (value for value in listed if isinstance(value, dict))
