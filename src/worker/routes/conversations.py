"""Prepares the conversations in requests' bodies: checks them and adds SYSTEM_PROMPT.

Each public function changes a body for the routes that name it in ``worker.routes.vllm.ROUTES``.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.job.base import add_system_prompt
from worker.messages import MEDIA_KEYS, convert_messages, media_url, require

# Parameters of /v1/responses that need objects on OpenAI's servers, and the ends of their refusals.
STORED_OBJECTS = {
    "background": "responses that could be fetched later: leave it out",
    "conversation": "conversations: send the earlier items in input",
    "prompt": "prompts: send the text in instructions or input",
}


def prepare_chat_messages(body: dict[str, Any], job: OpenAIJob, system_prompt: str | None) -> None:
    """Convert ``messages`` for vLLM, and add the system prompt unless they have a system message.

    A string becomes a message of the user. Messages without a role become the user's, too, if the
    caller wrote the route without /v1. A message that is continued starts no new turn.

    Raises:
        InvalidInput: The messages are no list, or one of them has no form that is known.
    """
    if "messages" not in body:
        return
    messages = body["messages"]
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    role = {} if job.has_version_prefix else {"role": "user"}
    conversation = [{**role, **message} for message in convert_messages(messages)]
    body["messages"] = add_system_prompt(conversation, system_prompt)
    if body.get("continue_final_message") is True:
        body.setdefault("add_generation_prompt", False)


def prepare_pooling_messages(body: dict[str, Any], _: OpenAIJob, system_prompt: str | None) -> None:
    """Convert conversations, in ``messages`` or in ``input``, for vLLM. SYSTEM_PROMPT is not added.

    Raises:
        InvalidInput: One of the messages has no form that is known.
    """
    for key in body.keys() & {"messages", "input"}:
        match body[key]:
            case [dict(), *_] as messages:
                body[key] = convert_messages(messages, key)
            case [[dict(), *_], *_] as conversations:
                body[key] = [convert_messages(m, f"{key}.{i}") for i, m in enumerate(conversations)]


def prepare_anthropic_messages(
    body: dict[str, Any], _: OpenAIJob, system_prompt: str | None
) -> None:
    """Convert the content blocks for vLLM, and set ``system`` unless the request has it.

    Raises:
        InvalidInput: A block has a type that vLLM does not read, or lacks its text.
    """
    convert_blocks(body)
    if system_prompt is not None:
        body.setdefault("system", system_prompt)


def prepare_responses_input(body: dict[str, Any], _: OpenAIJob, system_prompt: str | None) -> None:
    """Set ``instructions`` to the system prompt, and convert ``input`` for vLLM.

    The instructions are not set if the request has them or its input has a system message.

    Raises:
        InvalidInput: The input is neither a string nor a list, or contains a file; the tools are
            not a list; or the request needs an object that OpenAI's servers store.
    """
    for name, message in STORED_OBJECTS.items():
        if body.get(name):
            raise InvalidInput(f"{name}: this worker stores no {message}", param=name)
    require(list, "tools", body.get("tools", []))
    items = body.get("input", "")
    if not isinstance(items, str | list):
        raise InvalidInput("input: Input should be a valid string or list", param="input")
    if isinstance(items, list):
        body["input"] = [_simplify_item(item) for item in items]
    if system_prompt is not None and not _has_system_message(items):
        body.setdefault("instructions", system_prompt)


def _simplify_item(item: Any) -> Any:
    """Join text parts of earlier answers and tool output (vLLM reads only one); refuse files.

    The arguments of a call may be an object.
    """
    if not isinstance(item, dict):
        return item
    if item.get("type") == "function_call" and isinstance(item.get("arguments"), dict):
        return {**item, "arguments": json.dumps(item["arguments"], ensure_ascii=False)}
    if item.get("type") == "reasoning":
        return {**item, **dict(_joined_parts_of_reasoning(item))}
    for parts in (item.get("content"), item.get("output")):
        if isinstance(parts, list) and any(_has_type(part, "input_file") for part in parts):
            raise InvalidInput(
                "input: this worker accepts no files: send their text", param="input"
            )
    if item.get("type") == "function_call_output" and _has_only_text(item.get("output")):
        return {**item, "output": _join_text(item["output"])}
    if item.get("role") == "assistant" and _has_only_text(item.get("content")):
        part = {"type": "output_text", "text": _join_text(item["content"]), "annotations": []}
        return {**item, "content": [part]}
    return item


def _joined_parts_of_reasoning(item: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for key, type_ in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = item.get(key)
        if isinstance(parts, list) and len(parts) > 1 and all(_has_type(p, type_) for p in parts):
            yield key, [{"type": type_, "text": "\n".join(str(part.get("text")) for part in parts)}]


def _has_system_message(items: Any) -> bool:
    """Return whether an input contains a system or developer message."""
    messages = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return any(message.get("role") in ("system", "developer") for message in messages)


def _has_only_text(parts: Any) -> bool:
    types = ("input_text", "output_text", "refusal")
    return isinstance(parts, list) and all(_has_type(part, *types) for part in parts)


def _has_type(part: Any, *types: str) -> bool:
    return isinstance(part, dict) and part.get("type") in types


def _join_text(parts: list[dict[str, Any]]) -> str:
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)


Block = dict[str, Any]

_TOOL_CHANGES = ("tool_addition", "tool_removal")
# The types of blocks that vLLM reads in the content of a message, by its role, in a tool's result,
# and in ``system``. It drops the contents of ``redacted_thinking``, which are encrypted.
READ_TYPES = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"),
    "system": ("text", *_TOOL_CHANGES),
    "tool_result": ("text", "image"),
    "system prompt": ("text",),
}
# The text of a failed tool's result that has no content: vLLM ignores ``is_error``.
FAILED = "Error"


def convert_blocks(body: dict[str, Any]) -> None:
    """Convert the blocks of a body's ``system`` and ``messages`` for vLLM, in the body.

    Raises:
        InvalidInput: A block has a type that vLLM does not read in its place, or lacks its text.
            Wrong types of other values are left to vLLM.
    """
    if isinstance(body.get("system"), list):
        body["system"] = _convert_list(body["system"], "system", "system prompt")
    messages = body.get("messages")
    if isinstance(messages, list):
        body["messages"] = [
            _convert_message(message, f"messages.{i}") for i, message in enumerate(messages)
        ]


def _convert_message(message: Any, place: str) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    role = message.get("role")
    if not isinstance(role, str) or role not in READ_TYPES:
        return message
    return {**message, "content": _convert_list(message["content"], f"{place}.content", role)}


def _convert_list(blocks: list[Any], place: str, where: str) -> list[Block]:
    return [
        converted
        for i, block in enumerate(blocks)
        for converted in _convert_block(block, f"{place}.{i}", where)
    ]


def _convert_block(value: Any, place: str, where: str) -> Iterator[Block]:
    block = require(dict, place, value)
    type_ = block.get("type")
    convert = CONVERTERS.get(type_) if isinstance(type_, str) else None
    for converted in convert(block, place) if convert else [block]:
        if converted.get("type") not in READ_TYPES[where]:
            types = ", ".join((*READ_TYPES[where], *CONVERTED_TYPES))
            message = f"{place}.type: Input should be one of {types}"
            raise InvalidInput(message, param=f"{place}.type")
        if converted["type"] == "text":
            require(str, f"{place}.text", converted.get("text"))
        yield converted


def _convert_tool_result(block: Block, place: str) -> Iterator[Block]:
    content = block.get("content")
    if isinstance(content, list):
        content = _convert_list(content, f"{place}.content", "tool_result")
    if block.get("is_error") and not content:
        content = FAILED
    yield {**block, "content": content}


def _convert_tool_use(block: Block, place: str) -> Iterator[Block]:
    """Make the input of a call an object; a model may have written another value."""
    written = block.get("input")
    if not isinstance(written, dict):
        written = {"input": written} if written else {}
    yield {**block, "input": written}


def _convert_search_result(block: Block, place: str) -> Iterator[Block]:
    heads = [block.get(key) for key in ("title", "source")]
    yield _text_block([*heads, *_texts(block.get("content"), f"{place}.content")])


def _convert_document(block: Block, place: str) -> Iterator[Block]:
    heads = [block.get(key) for key in ("title", "context")]
    source = require(dict, f"{place}.source", block.get("source"))
    match source.get("type"):
        case "text":
            yield _text_block([*heads, require(str, f"{place}.source.data", source.get("data"))])
        case "content" if isinstance(source.get("content"), str):
            yield _text_block([*heads, source["content"]])
        case "content":
            if any(heads):
                yield _text_block(heads)
            content = source.get("content")
            items = content if isinstance(content, list) else [content]
            yield from _convert_list(items, f"{place}.source.content", "tool_result")
        case _:
            field = f"{place}.source.type"
            message = "this worker reads no files such as PDFs: send the text, as text or content"
            raise InvalidInput(f"{field}: {message}", param=field)


def _convert_tool_reference(block: Block, place: str) -> Iterator[Block]:
    name = block.get("tool_name") or block.get("name")
    yield _text_block([require(str, f"{place}.tool_name", name)])


def _convert_image(block: Block, place: str) -> Iterator[Block]:
    """Convert an image of transformers; a block of Anthropic's API has a source."""
    if isinstance(block.get("source"), dict):
        yield block
    else:
        yield {"type": "image", "source": {"type": "url", "url": media_url(block, place)}}


def _convert_image_url(key: str, block: Block, place: str) -> Iterator[Block]:
    """Convert an image of OpenAI's APIs."""
    url = block.get(key)
    url = url.get("url") if isinstance(url, dict) else url
    yield {"type": "image", "source": {"type": "url", "url": require(str, f"{place}.{key}", url)}}


# Functions that convert a block with its path to the blocks that vLLM reads, by the block's type.
CONVERTERS: dict[str, Callable[[Block, str], Iterator[Block]]] = {
    "tool_result": _convert_tool_result,
    "tool_use": _convert_tool_use,
    "search_result": _convert_search_result,
    "document": _convert_document,
    "tool_reference": _convert_tool_reference,
    "image": _convert_image,
    **{
        type_: partial(_convert_image_url, MEDIA_KEYS[type_])
        for type_ in ("image_url", "input_image")
    },
}
CONVERTED_TYPES = ("search_result", "document", "tool_reference")


def _text_block(texts: list[Any]) -> Block:
    return {"type": "text", "text": "\n".join(str(text) for text in texts if text)}


def _texts(content: Any, place: str) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    require(list, place, content)
    for i, block in enumerate(content):
        yield require(str, f"{place}.{i}.text", require(dict, f"{place}.{i}", block).get("text"))
