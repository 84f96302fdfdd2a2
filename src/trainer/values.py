"""Parses and validates rows: a prompt with its answer, or a conversation."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.messages import REASONING_KEYS, find_reasoning

# Keys of a prompt and its answer: LLM Engine's two pairs, and OpenAI's former pair.
KEY_PAIRS = (("prompt", "response"), ("input", "output"), ("prompt", "completion"))
KEY_PAIRS_TEXT = "prompt and response, input and output, or prompt and completion"

ROLES = ("system", "developer", "user", "assistant", "tool")
# Known keys of a message. ``refusal`` and ``annotations``, which answers have, are ignored.
MESSAGE_KEYS = frozenset(
    "role content name weight tool_calls tool_call_id refusal annotations".split()
) | {*REASONING_KEYS}
# Maximum number of messages per row: each answer is rendered with all messages before it.
MAX_MESSAGES = 256
# Maximum number of characters of a key in an error message.
MAX_KEY_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt and its answer."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A conversation.

    Args:
        messages: Messages for a chat template; each content is a string or a list of text parts.
        tools: Tools that the model may call; None without tools.
        learned_indices: Indices of the assistant's messages that are learned, in ascending order.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    learned_indices: tuple[int, ...]


RowValue = PromptRow | ChatRow


class InvalidRowError(Exception):
    """A row can't be trained on; the message gives the reason, without the row's text."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def find_prompt_answer_keys(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the keys of the prompt and the answer; None if there is no known pair.

    Raises:
        InvalidRowError: The names contain more than one known pair.
    """
    known = set(names)
    found = [pair for pair in KEY_PAIRS if known.issuperset(pair)]
    if len(found) > 1:
        raise InvalidRowError(f"the row has several answers: use either {KEY_PAIRS_TEXT}")
    return found[0] if found else None


def parse_prompt_row(values: Mapping[str, Any], pair: tuple[str, str]) -> PromptRow:
    """Return a row's prompt and answer.

    Raises:
        InvalidRowError: The prompt or the answer is not a string, or empty.
    """
    for name in pair:
        if not isinstance(values[name], str):
            raise InvalidRowError(f"{name} is {_describe_type(values[name])}, and has to be a text")
        if not values[name].strip():
            raise InvalidRowError(f"{name} is empty")
    return PromptRow(values[pair[0]], values[pair[1]])


def parse_row(value: Any) -> RowValue:
    """Return the row in a parsed line of JSON; null counts as absent, other keys are ignored.

    Raises:
        InvalidRowError: The line is not a valid row.
    """
    if not isinstance(value, dict):
        hint = "; a list of rows is written as one row a line" if isinstance(value, list) else ""
        raise InvalidRowError(
            f"the line is {_describe_type(value)}, and has to be a JSON object{hint}"
        )
    row = _drop_nulls(value)
    pair = find_prompt_answer_keys(row)
    if "messages" in row:
        if pair is not None:
            raise InvalidRowError(f"the row has messages and {' and '.join(pair)}: use one of them")
        if row.get("functions"):
            raise InvalidRowError("a row has tools instead of functions")
        return _parse_chat_row(row)
    if pair is None:
        raise InvalidRowError(f"the row has neither messages nor {KEY_PAIRS_TEXT}")
    return parse_prompt_row(row, pair)


def _parse_chat_row(row: dict[str, Any]) -> ChatRow:
    values = row["messages"]
    if not isinstance(values, list) or not values:
        raise InvalidRowError("messages has to be a list of messages")
    if len(values) > MAX_MESSAGES:
        raise InvalidRowError(
            f"the row has {len(values):,} messages, and at most {MAX_MESSAGES} are accepted"
        )
    messages: list[dict[str, Any]] = []
    learned: list[int] = []
    for index, message in enumerate(values):
        try:
            parsed, weight = _parse_message(message)
            messages.append(parsed)
            # A first message isn't learned: the model never answers an empty conversation.
            if parsed["role"] == "assistant" and weight and index:
                learned.append(index)
        except InvalidRowError as error:
            raise InvalidRowError(f"messages[{index}]: {error.message}") from None
    if messages[-1]["role"] != "assistant":
        raise InvalidRowError(
            "the last message is not the assistant's, so there is no answer to it"
        )
    if not learned:
        raise InvalidRowError(
            "nothing can be learned: each answer has weight 0 or is the first message"
        )
    return ChatRow(messages, _parse_tools(row.get("tools")), tuple(learned))


def _parse_message(value: Any) -> tuple[dict[str, Any], int]:
    """Return a message for chat templates, and its weight."""
    if not isinstance(value, dict):
        raise InvalidRowError(f"it is {_describe_type(value)}, and has to be a JSON object")
    # An empty list means the same as null: answers have it for tool calls and annotations.
    present = {key: item for key, item in _drop_nulls(value).items() if item != []}
    _refuse_unknown_keys(present)
    role = present.get("role")
    if role not in ROLES:
        raise InvalidRowError(f"role has to be one of {', '.join(ROLES)}")
    message = {"role": role, "content": _parse_content(present.get("content"))}
    for key in ("name", "tool_call_id"):
        if key in present:
            message[key] = _require_text(key, present[key])
    others = _assistant_fields(present) if role == "assistant" else _parse_other_role(present)
    return message | others, _parse_weight(present)


def _assistant_fields(message: dict[str, Any]) -> dict[str, Any]:
    """Return an assistant message's tool calls and reasoning, as chat templates expect them."""
    calls = _parse_tool_calls(message)
    content = message.get("content") or ""
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    if not calls and not any(text.strip() for text in texts):
        raise InvalidRowError("the assistant's message has neither content nor tool_calls")
    # vLLM passes the reasoning to templates under both names.
    text = find_reasoning(message)
    if text is None:
        return calls
    return calls | dict.fromkeys(REASONING_KEYS, _require_text(REASONING_KEYS[0], text))


def _parse_other_role(message: dict[str, Any]) -> dict[str, Any]:
    if "content" not in message:
        raise InvalidRowError("content is missing")
    if wrong := {"tool_calls", "weight"}.intersection(message):
        raise InvalidRowError(f"{min(wrong)} is for messages of the assistant")
    return {}


def _parse_content(value: Any) -> str | list[dict[str, str]]:
    if value is None:
        return ""
    if not isinstance(value, list):
        return _require_text("content", value)
    parts = [_drop_nulls(part) if isinstance(part, dict) else {} for part in value]
    for part in parts:
        if set(part) != {"type", "text"} or part["type"] != "text":
            raise InvalidRowError(
                'content has to be a text, or a list of {"type": "text", "text": …}'
            )
        _require_text("text", part["text"])
    return parts


def _parse_weight(message: dict[str, Any]) -> int:
    weight = message.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise InvalidRowError("weight has to be 0 or 1")
    return int(weight)


def _parse_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    value = message.get("tool_calls")
    if value is None:
        return {}
    if not isinstance(value, list):
        raise InvalidRowError(f"tool_calls is {_describe_type(value)}, and has to be a list")
    calls = []
    for call in value:
        if not _has_named_function(call):
            raise InvalidRowError("each of tool_calls needs a function with a name")
        # Templates expect the arguments as an object, as vLLM passes them.
        function = {**call["function"], "arguments": _parse_tool_call_arguments(call)}
        calls.append({**call, "function": function})
    return {"tool_calls": calls}


def _parse_tool_call_arguments(call: dict[str, Any]) -> dict[str, Any]:
    value = call["function"].get("arguments") or {}
    try:
        arguments = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRowError("a tool call's arguments have to be a JSON object")
    return arguments


def _parse_tools(value: Any) -> list[Any] | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(map(_has_named_function, value)):
        raise InvalidRowError('tools has to be a list of {"type": "function", "function": {…}}')
    return value


def _has_named_function(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _require_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRowError(f"{name} is {_describe_type(value)}, and has to be a text")
    return value


def _drop_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _refuse_unknown_keys(message: Mapping[str, Any]) -> None:
    if unknown := sorted(set(message).difference(MESSAGE_KEYS)):
        allowed = ", ".join(sorted(MESSAGE_KEYS))
        raise InvalidRowError(f"the key {quote_key(unknown[0])} is not known; known are {allowed}")


def quote_key(key: str) -> str:
    """Return a key as quoted in a message, shortened if it is long."""
    return repr(key if len(key) <= MAX_KEY_CHARACTERS else key[: MAX_KEY_CHARACTERS - 1] + "…")


def _describe_type(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {str: "a text", bool: "a boolean", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")
