"""Limits for tools, function names and chat template values, in raw jobs and in bodies.

vLLM quotes names in its messages, which it searches with regular expressions. Templates and
parsers iterate over tools and values many times.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from worker.errors import InvalidInput

MAX_TOOLS = 128
FUNCTION_NAME = re.compile(r"[\w.-]{1,64}")

MAX_TEMPLATE_VALUES = 32
TEMPLATE_VALUE_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
# Names that callers must not set: parameters of the functions that vLLM passes the template values
# to, and functions that templates call. For example, a template is rendered and tokenized in one
# call, where ``max_length`` and ``padding`` could request billions of tokens.
RESERVED_NAMES = frozenset(
    """
    chat_template conversation conversations kwargs max_length messages model_config padding
    raise_exception return_assistant_tokens_mask return_dict return_tensors self strftime_now
    tokenize tokenizer tokenizer_kwargs tools truncation trust_remote_code
    """.split()
)

TEMPLATE_KWARGS = "chat_template_kwargs"


def check_tools(values: Mapping[str, Any]) -> None:
    """Check the tools, tool calls and chat template values of a raw job or a body.

    Raises:
        InvalidInput: If there are too many tools or template values, or a name is invalid.
    """
    tools = values.get("tools")
    if isinstance(tools, list) and len(tools) > MAX_TOOLS:
        raise InvalidInput(f"tools: {len(tools):,} of them, at most {MAX_TOOLS}", param="tools")
    for place, name in _function_paths_and_names(values):
        if isinstance(name, str) and not FUNCTION_NAME.fullmatch(name):
            message = f"{len(name):,} characters; 1 to 64 letters, digits and ._- are a name"
            raise InvalidInput(f"{place}: {message}", param=place)
    _check_template_kwargs(values.get(TEMPLATE_KWARGS))


def _check_template_kwargs(kwargs: Any) -> None:
    if not isinstance(kwargs, dict):
        return
    if len(kwargs) > MAX_TEMPLATE_VALUES:
        message = f"{len(kwargs):,} keys, at most {MAX_TEMPLATE_VALUES}"
        raise InvalidInput(f"{TEMPLATE_KWARGS}: {message}", param=TEMPLATE_KWARGS)
    for name in kwargs:
        if not TEMPLATE_VALUE_NAME.fullmatch(name):
            message = "a key is a name of at most 64 letters, digits and _"
            raise InvalidInput(f"{TEMPLATE_KWARGS}: {message}", param=TEMPLATE_KWARGS)
        if name in RESERVED_NAMES:
            place = f"{TEMPLATE_KWARGS}.{name}"
            raise InvalidInput(
                f"{place}: not allowed in a request: vLLM sets it itself", param=place
            )


def _function_paths_and_names(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the path and the name of each function, in the formats of OpenAI and Anthropic."""
    for place in ("tools", "functions"):
        for index, tool in enumerate(_dicts_in_list(values.get(place))):
            yield from _tool_paths_and_names(f"{place}.{index}", tool)
    for place in ("tool_choice", "function_call"):
        for choice in _dicts_in_list([values.get(place)]):
            yield from _tool_paths_and_names(place, choice)
            for index, tool in enumerate(_dicts_in_list(choice.get("tools"))):
                yield from _tool_paths_and_names(f"{place}.tools.{index}", tool)
    for place in ("messages", "input"):
        for index, message in enumerate(_dicts_in_list(values.get(place))):
            yield from _call_paths_and_names(f"{place}.{index}", message)


def _tool_paths_and_names(place: str, tool: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield f"{place}.name", tool.get("name")
    for function in _dicts_in_list([tool.get("function")]):
        yield f"{place}.function.name", function.get("name")


def _call_paths_and_names(place: str, message: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the path and the name of each tool call in a message, without its author's ``name``."""
    for index, call in enumerate(_dicts_in_list(message.get("tool_calls"))):
        yield from _tool_paths_and_names(f"{place}.tool_calls.{index}", call)
    for call in _dicts_in_list([message.get("function_call")]):
        yield f"{place}.function_call.name", call.get("name")
    if message.get("type") == "function_call":
        yield f"{place}.name", message.get("name")
    for index, part in enumerate(_dicts_in_list(message.get("content"))):
        if part.get("type") == "tool_use":
            yield f"{place}.content.{index}.name", part.get("name")


def _dicts_in_list(values: Any) -> Iterator[Mapping[str, Any]]:
    items = values if isinstance(values, list) else []
    return (value for value in items if isinstance(value, dict))
