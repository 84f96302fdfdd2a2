"""Conversations in requests' bodies: checks them, converts them for vLLM, and adds SYSTEM_PROMPT.

Each public function changes a body for the routes that name it in ``worker.routes.vllm.ROUTES``.
Its arguments are the body, the job and SYSTEM_PROMPT. It raises ``InvalidInput`` with the path of a
message, block or item in a form that vLLM does not read. Wrong types of other values are left to
vLLM.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from worker.errors import field_error
from worker.job import OpenAIJob
from worker.messages import MEDIA_KEYS, add_system_prompt, convert_messages, media_url, require


def prepare_chat_messages(body: dict[str, Any], job: OpenAIJob, system_prompt: str | None) -> None:
    """Convert ``messages`` for vLLM, and add the system prompt unless they have a system message.

    A string becomes a message of the user. Messages without a role become the user's, too, if the
    caller wrote the route without /v1. A message that is continued starts no new turn.
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
    """Convert conversations in ``messages`` or ``input``; SYSTEM_PROMPT is not added."""
    for key in body.keys() & {"messages", "input"}:
        match body[key]:
            case [dict(), *_] as messages:
                body[key] = convert_messages(messages, key)
            case [[dict(), *_], *_] as conversations:
                body[key] = [convert_messages(m, f"{key}.{i}") for i, m in enumerate(conversations)]


# Content blocks of Anthropic's API. vLLM silently ignores blocks of some types, and parts of a
# tool's result that are neither text nor images. Their text becomes text blocks here, and blocks
# without text are refused by their place.

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


def prepare_anthropic_messages(
    body: dict[str, Any], _: OpenAIJob, system_prompt: str | None
) -> None:
    """Convert the blocks of ``system`` and ``messages``, and set ``system`` if it is absent."""
    if isinstance(body.get("system"), list):
        body["system"] = [*_convert_blocks(body["system"], "system", "system prompt")]
    if isinstance(body.get("messages"), list):
        body["messages"] = body["messages"].copy()
        for i, message in enumerate(body["messages"]):
            match message:
                case {"role": str(role), "content": [*blocks]} if role in READ_TYPES:
                    content = [*_convert_blocks(blocks, f"messages.{i}.content", role)]
                    body["messages"][i] = {**message, "content": content}
    if system_prompt is not None:
        body.setdefault("system", system_prompt)


def _convert_blocks(blocks: list[Any], place: str, where: str) -> Iterator[Block]:
    for i, value in enumerate(blocks):
        block_place = f"{place}.{i}"
        block = require(dict, block_place, value)
        type_ = block.get("type")
        convert = CONVERTERS.get(type_) if isinstance(type_, str) else None
        for converted in convert(block, block_place) if convert else [block]:
            if converted.get("type") not in READ_TYPES[where]:
                types = ", ".join((*READ_TYPES[where], *CONVERTED_TYPES))
                raise field_error(f"{block_place}.type", f"Input should be one of {types}")
            if converted["type"] == "text":
                require(str, f"{block_place}.text", converted.get("text"))
            yield converted


def _convert_tool_result(block: Block, place: str) -> Iterator[Block]:
    content = block.get("content")
    if isinstance(content, list):
        content = [*_convert_blocks(content, f"{place}.content", "tool_result")]
    if block.get("is_error") and not content:
        content = FAILED
    yield {**block, "content": content}


def _convert_tool_use(block: Block, _: str) -> Iterator[Block]:
    # The input has to be an object, and a model may have written another value.
    written = block.get("input")
    if not isinstance(written, dict):
        written = {"input": written} if written else {}
    yield {**block, "input": written}


def _convert_search_result(block: Block, place: str) -> Iterator[Block]:
    texts = [block.get("title"), block.get("source")]
    content = block.get("content")
    if isinstance(content, str):
        texts.append(content)
    else:
        for i, part in enumerate(require(list, f"{place}.content", content)):
            part_place = f"{place}.content.{i}"
            text = require(dict, part_place, part).get("text")
            texts.append(require(str, f"{part_place}.text", text))
    yield _text_block(texts)


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
            yield from _convert_blocks(items, f"{place}.source.content", "tool_result")
        case _:
            message = "this worker reads no files such as PDFs: send the text, as text or content"
            raise field_error(f"{place}.source.type", message)


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


# Items of OpenAI's Responses API.

# Parameters of /v1/responses that need objects on OpenAI's servers, and the ends of their refusals.
STORED_OBJECTS = {
    "background": "responses that could be fetched later: leave it out",
    "conversation": "conversations: send the earlier items in input",
    "prompt": "prompts: send the text in instructions or input",
}
TEXT_TYPES = ("input_text", "output_text", "refusal")


def prepare_responses_input(body: dict[str, Any], _: OpenAIJob, system_prompt: str | None) -> None:
    """Convert ``input``, and set ``instructions`` unless the request has a system message.

    Parameters that need objects on OpenAI's servers are refused, and so are files.
    """
    for name, message in STORED_OBJECTS.items():
        if body.get(name):
            raise field_error(name, f"this worker stores no {message}")
    require(list, "tools", body.get("tools", []))
    items = body.get("input", "")
    if not isinstance(items, str | list):
        raise field_error("input", "Input should be a valid string or list")
    has_system_message = False
    if isinstance(items, list):
        objects = [item for item in items if isinstance(item, dict)]
        has_system_message = any(item.get("role") in ("system", "developer") for item in objects)
        body["input"] = [_simplify_item(i) if isinstance(i, dict) else i for i in items]
    if system_prompt is not None and not has_system_message:
        body.setdefault("instructions", system_prompt)


def _simplify_item(item: dict[str, Any]) -> dict[str, Any]:
    """Join text parts of earlier answers and tool output (vLLM reads only one); refuse files."""
    match item.get("type"):
        case "function_call" if isinstance(item.get("arguments"), dict):
            return {**item, "arguments": json.dumps(item["arguments"], ensure_ascii=False)}
        case "reasoning":
            item = dict(item)
            for key, type_ in (("content", "reasoning_text"), ("summary", "summary_text")):
                if _has_only(item.get(key), [type_]) and len(item[key]) > 1:
                    text = "\n".join(str(part.get("text")) for part in item[key])
                    item[key] = [{"type": type_, "text": text}]
            return item
    for parts in (item.get("content"), item.get("output")):
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and part.get("type") == "input_file":
                raise field_error("input", "this worker accepts no files: send their text")
    if item.get("type") == "function_call_output" and _has_only(item.get("output"), TEXT_TYPES):
        return {**item, "output": _join_text(item["output"])}
    if item.get("role") == "assistant" and _has_only(item.get("content"), TEXT_TYPES):
        part = {"type": "output_text", "text": _join_text(item["content"]), "annotations": []}
        return {**item, "content": [part]}
    return item


def _has_only(parts: Any, types: Sequence[str]) -> bool:
    return isinstance(parts, list) and all(
        isinstance(part, dict) and part.get("type") in types for part in parts
    )


def _join_text(parts: list[dict[str, Any]]) -> str:
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
