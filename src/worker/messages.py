"""Messages of chats: the forms that callers send, and the one form that vLLM reads.

Callers write messages as OpenAI's API, other servers or transformers have them, and send the
answers of this worker back to it. vLLM reads some of these forms only, ignores others silently, and
its errors for a part or a tool call don't have their place.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from worker.errors import field_error

T = TypeVar("T", dict[str, Any], list[Any], str)

# Names of an answer's reasoning in a message. If both have a value, the first one counts.
REASONING_KEYS = ("reasoning", "reasoning_content")

# The types of parts that are text, and the key of their text.
TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "tool_reference": "name",
}
# The types of parts with media, and the key of their URL or data.
MEDIA_KEYS = {
    "image_url": "image_url",
    "video_url": "video_url",
    "audio_url": "audio_url",
    "input_image": "image_url",
    "input_audio": "input_audio",
}
# The types of parts that only scripts of an operator may send: the walker refuses them in requests.
OPERATOR_TYPES = frozenset(
    {"image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"}
)
# The kinds of media, which are the types of such parts in transformers and in Anthropic's API.
MEDIA_KINDS = ("image", "video", "audio")
# Types with another name in OpenAI's Responses API.
OTHER_NAMES = {"input_text": "text", "output_text": "text", "input_image": "image_url"}

_TYPE_NAMES: dict[type, str] = {list: "list", dict: "dictionary", str: "string"}
_PART_TYPES = ", ".join((*TEXT_KEYS, *MEDIA_KEYS))


def convert_messages(messages: Any, place: str = "messages") -> list[dict[str, Any]]:
    """Return messages in the form that vLLM reads. ``place`` is their path, for errors.

    Roles, and the media in parts, are not checked here.
    """
    require(list, place, messages)
    return [_convert_message(message, f"{place}.{i}") for i, message in enumerate(messages)]


def add_system_prompt(
    conversation: list[dict[str, Any]], system_prompt: str | None
) -> list[dict[str, Any]]:
    """Prepend SYSTEM_PROMPT, unless the conversation has a system or developer message."""
    roles = {str(message.get("role")) for message in conversation}
    if system_prompt is None or roles & {"system", "developer"}:
        return conversation
    return [{"role": "system", "content": system_prompt}, *conversation]


def find_reasoning(message: Mapping[str, Any]) -> Any:
    return next((message[key] for key in REASONING_KEYS if message.get(key) is not None), None)


def media_url(part: Mapping[str, Any], place: str) -> str:
    """Return the URL of a part of transformers or of Anthropic's API, such as an ``image``."""
    kind, source = part["type"], part.get("source")
    url = part.get(kind) or part.get("url")
    if isinstance(source, dict):
        data = f"data:{source.get('media_type')};base64,{source.get('data')}"
        url = data if isinstance(source.get("data"), str) else source.get("url")
    if not isinstance(url, str):
        form = {"type": f"{kind}_url", f"{kind}_url": {"url": "data:..."}}
        raise field_error(place, f"Input should be {json.dumps(form)}")
    return url


def mend_texts(value: Any) -> Any:
    match value:
        case str():
            return value if value.isascii() else mend_text(value)
        case list():
            return [mend_texts(item) for item in value]
        case dict():
            return {mend_texts(key): mend_texts(item) for key, item in value.items()}
    return value


def mend_text(text: str) -> str:
    """Replace halves of surrogate pairs, which can't be encoded, by U+FFFD.

    A model writes one into the arguments of a tool, or a client cuts a text inside of an emoji.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def require(kind: type[T], field: str, value: Any) -> T:
    """Return a value that has to be a list, an object or a string, or raise ``InvalidInput``."""
    if not isinstance(value, kind):
        raise field_error(field, f"Input should be a valid {_TYPE_NAMES[kind]}")
    return value


def _convert_message(value: Any, place: str) -> dict[str, Any]:
    written = require(dict, place, value)
    # Templates know the null content of an answer without text. vLLM refuses a role that is null.
    kept = ("role", "content") if written.get("role") == "assistant" else ("role",)
    message = {key: item for key, item in written.items() if item is not None or key in kept}
    reasoning = find_reasoning(message)
    for key in REASONING_KEYS:
        message.pop(key, None)
    if reasoning is not None:
        message[REASONING_KEYS[0]] = reasoning
    if (calls := message.get("tool_calls")) is not None:
        require(list, f"{place}.tool_calls", calls)
        message["tool_calls"] = [
            _convert_tool_call(call, f"{place}.tool_calls.{i}") for i, call in enumerate(calls)
        ]
    if not calls and (function := message.pop("function_call", None)) is not None:
        # OpenAI's former key for a single call, which vLLM ignores.
        message["tool_calls"] = [_convert_tool_call({"function": function}, place)]
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [
            _convert_part(part, f"{place}.content.{i}") for i, part in enumerate(content)
        ]
    elif content is None and message.get("refusal") is not None:
        # vLLM ignores this key.
        message["content"] = require(str, f"{place}.refusal", message["refusal"])
    elif content is not None:
        require(str, f"{place}.content", content)
    return message


def _convert_tool_call(value: Any, place: str) -> dict[str, Any]:
    """Return a tool call with an id, a type, and arguments as JSON text.

    In transformers, a call needs no id, its arguments are an object, and it may be the function
    itself.
    """
    call = require(dict, place, value)
    if call.get("type") not in (None, "function"):
        raise field_error(f"{place}.type", "Input should be 'function'")
    function = call if "function" not in call and "name" in call else call.get("function")
    function = require(dict, f"{place}.function", function)
    require(str, f"{place}.function.name", function.get("name"))
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, dict):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    if not isinstance(arguments, str):
        message = "Input should be JSON text or an object"
        raise field_error(f"{place}.function.arguments", message)
    id_ = "" if call.get("id") is None else require(str, f"{place}.id", call["id"])
    named = {"name": function["name"], "arguments": arguments}
    return {"id": id_, "type": "function", "function": named}


def _convert_part(value: Any, place: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"type": "text", "text": value}
    part = require(dict, place, value)
    type_ = part.get("type")
    if type_ is None:
        names = (*MEDIA_KEYS, *OPERATOR_TYPES)
        type_ = next((name for name in names if part.get(name) is not None), None)
    if type_ in MEDIA_KINDS:
        others = {key: part[key] for key in part.keys() - {type_, "url", "source"}}
        name = f"{type_}_url"
        return {**others, "type": name, name: {"url": media_url(part, place)}}
    if isinstance(type_, str) and type_ in OPERATOR_TYPES:
        return dict(part)
    if not isinstance(type_, str) or type_ not in TEXT_KEYS.keys() | MEDIA_KEYS.keys():
        raise field_error(f"{place}.type", f"Input should be one of {_PART_TYPES}")
    part = {**part, "type": OTHER_NAMES.get(type_, type_)}
    if type_ in TEXT_KEYS:
        require(str, f"{place}.{TEXT_KEYS[type_]}", part.get(TEXT_KEYS[type_]))
    elif isinstance(url := part.get(MEDIA_KEYS[type_]), str):
        part[MEDIA_KEYS[type_]] = {"url": url}
    return part
