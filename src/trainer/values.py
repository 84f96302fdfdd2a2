"""What a row says: a prompt and its answer, or a conversation; and what is refused."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# The names of a prompt and its answer: LLM Engine's two, and OpenAI's of old.
PAIRS = (("prompt", "response"), ("input", "output"), ("prompt", "completion"))
SHAPES = "prompt and response, input and output, or prompt and completion"

ROLES = ("system", "developer", "user", "assistant", "tool")
# Of a row of messages, and of a message.
ROW_KEYS = frozenset({"messages", "tools", "parallel_tool_calls"})
MESSAGE_KEYS = frozenset(
    "role content name weight tool_calls tool_call_id refusal reasoning reasoning_content".split()
)
# Of a row: each answer is rendered with all that is before it.
MOST_MESSAGES = 256
# Characters of a key that a message quotes.
LONGEST_KEY = 40


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text, and the answer to it."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation.

    Args:
        messages: as chat templates take them; each content is a text or a list of texts' parts.
        tools: that the model may call; None: none.
        learned: the places of the messages that are learned; the last is the last one's.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    learned: tuple[int, ...]


Value = Prompt | Chat


class WrongRowError(Exception):
    """A row can't be trained on; the message says why, without the row's text."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def pair_in(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the names of the prompt and the answer; None if there is no known pair.

    Raises:
        WrongRowError: there are several.
    """
    known = set(names)
    found = [pair for pair in PAIRS if known.issuperset(pair)]
    if len(found) > 1:
        raise WrongRowError(f"there are several answers: it takes either {SHAPES}")
    return found[0] if found else None


def prompt_in(values: Mapping[str, Any], pair: tuple[str, str]) -> Prompt:
    """Return a row's prompt and answer.

    Raises:
        WrongRowError: they are no texts, or empty.
    """
    for name in pair:
        if not isinstance(values[name], str):
            raise WrongRowError(f"{name} is {_kind(values[name])}, and has to be a text")
        if not values[name].strip():
            raise WrongRowError(f"{name} is empty")
    return Prompt(values[pair[0]], values[pair[1]])


def row_in(value: Any) -> Value:
    """Return what a line of JSON says.

    Raises:
        WrongRowError: it is no row.
    """
    if not isinstance(value, dict):
        hint = "; a list of rows is written as one row a line" if isinstance(value, list) else ""
        raise WrongRowError(f"the line is {_kind(value)}, and has to be a JSON object{hint}")
    if "messages" in value:
        _known(value, ROW_KEYS)
        return _chat(value)
    if (pair := pair_in(value)) is None:
        raise WrongRowError(f"the row has neither messages nor {SHAPES}")
    _known(value, pair)
    return prompt_in(value, pair)


def _chat(row: dict[str, Any]) -> Chat:
    given = row["messages"]
    if not isinstance(given, list) or not given:
        raise WrongRowError("messages is no list with messages in it")
    if len(given) > MOST_MESSAGES:
        raise WrongRowError(
            f"the row has {len(given):,} messages, and at most {MOST_MESSAGES} are taken"
        )
    messages: list[dict[str, Any]] = []
    learned: list[int] = []
    for place, message in enumerate(given):
        try:
            messages.append(_message(message))
            # The model is never asked for an answer to nothing.
            if messages[-1]["role"] == "assistant" and _weight(message) and place:
                learned.append(place)
        except WrongRowError as wrong:
            raise WrongRowError(f"messages[{place}]: {wrong.message}") from None
    if messages[-1]["role"] != "assistant":
        raise WrongRowError("the last message is not the assistant's, so there is no answer to it")
    if not learned:
        raise WrongRowError(
            "nothing can be learned: each answer has weight 0 or is the first message"
        )
    return Chat(messages, _tools(row.get("tools")), tuple(learned))


def _message(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise WrongRowError(f"it is {_kind(given)}, and has to be a JSON object")
    _known(given, MESSAGE_KEYS)
    role = given.get("role")
    if role not in ROLES:
        raise WrongRowError(f"role has to be one of {', '.join(ROLES)}")
    message = {"role": role, "content": _content(given.get("content"))}
    for key in ("name", "tool_call_id"):
        if given.get(key) is not None:
            message[key] = _text(key, given[key])
    return message | (_assistants(given) if role == "assistant" else _others(given))


def _assistants(given: dict[str, Any]) -> dict[str, Any]:
    """Return what only an assistant's message has."""
    calls = _calls(given)
    content = given.get("content") or ""
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    if not calls and not any(text.strip() for text in texts):
        raise WrongRowError("the assistant's message has neither content nor tool_calls")
    # By both names that vLLM gives it for templates.
    names = ("reasoning", "reasoning_content")
    reasoning = next((given[name] for name in names if given.get(name) is not None), None)
    return calls if reasoning is None else calls | dict.fromkeys(names, _text(names[0], reasoning))


def _others(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("content") is None:
        raise WrongRowError("content is missing")
    if wrong := {"tool_calls", "weight"}.intersection(given):
        raise WrongRowError(f"{min(wrong)} is for messages of the assistant")
    return {}


def _content(given: Any) -> str | list[dict[str, str]]:
    if given is None:
        return ""
    if not isinstance(given, list):
        return _text("content", given)
    for part in given:
        if not isinstance(part, dict) or set(part) != {"type", "text"} or part["type"] != "text":
            raise WrongRowError(
                'content has to be a text, or a list of {"type": "text", "text": …}'
            )
        _text("text", part["text"])
    return given


def _weight(message: dict[str, Any]) -> bool:
    weight = message.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise WrongRowError("weight has to be 0 or 1")
    return bool(weight)


def _calls(message: dict[str, Any]) -> dict[str, Any]:
    given = message.get("tool_calls")
    if given is None or given == []:
        return {}
    if not isinstance(given, list):
        raise WrongRowError(f"tool_calls is {_kind(given)}, and has to be a list")
    calls = []
    for call in given:
        if not _has_function(call):
            raise WrongRowError("each of tool_calls needs a function with a name")
        # Templates take arguments as an object, as vLLM gives them.
        calls.append({**call, "function": {**call["function"], "arguments": _arguments(call)}})
    return {"tool_calls": calls}


def _arguments(call: dict[str, Any]) -> dict[str, Any]:
    given = call["function"].get("arguments") or {}
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise WrongRowError("a tool call's arguments have to be a JSON object")
    return arguments


def _tools(given: Any) -> list[Any] | None:
    if given is None or given == []:
        return None
    if not isinstance(given, list) or not all(map(_has_function, given)):
        raise WrongRowError('tools has to be a list of {"type": "function", "function": {…}}')
    return given


def _has_function(given: Any) -> bool:
    function = given.get("function") if isinstance(given, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise WrongRowError(f"{name} is {_kind(value)}, and has to be a text")
    return value


def _known(given: Mapping[str, Any], known: Iterable[str]) -> None:
    if unknown := sorted(set(given).difference(known)):
        allowed = ", ".join(sorted(known))
        raise WrongRowError(f"the key {quoted(unknown[0])} is not known; known are {allowed}")


def quoted(key: str) -> str:
    """Return a key as a message quotes it."""
    return repr(key if len(key) <= LONGEST_KEY else key[: LONGEST_KEY - 1] + "…")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {str: "a text", bool: "a boolean", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")
