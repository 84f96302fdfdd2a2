"""Content blocks of Anthropic's API, in the forms that vLLM reads.

vLLM silently ignores blocks of some types, and parts of a tool's result that are neither text nor
images. Their text becomes text blocks here, and blocks without text are refused by their place.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from worker.errors import InvalidInput
from worker.messages import MEDIA_KEYS, media_url, require

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
