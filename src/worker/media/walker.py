"""Finds the media in a request's body and refuses keys that must not reach vLLM.

Only the places that vLLM reads are examined. The schema of a tool, the arguments of a tool call and
the variables of a chat template may use the same keys for other purposes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worker.errors import field_error

MediaKind = Literal["image", "video", "audio"]
# Keys and indexes that lead to a value in a body.
ValuePath = tuple[str | int, ...]

_OPERATOR_ONLY = "only the operator can set it"
_NO_TENSORS = "this worker accepts text, token ids and media"
_NO_CACHE_TRANSFER = "this worker shares its cache with no other"

# Keys that are refused in a body, and in those of its objects that vLLM merges into the body's
# options (``OPTION_OBJECT_KEYS``). They pass options to libraries that decode media, lead to other
# machines, or set options that the worker decides on.
DENIED_KEYS = {
    "media_io_kwargs": _OPERATOR_ONLY,
    "mm_processor_kwargs": _OPERATOR_ONLY,
    "use_audio_in_video": _OPERATOR_ONLY,
    "audio_embeds": _NO_TENSORS,
    "image_embeds": _NO_TENSORS,
    "prompt_embeds": _NO_TENSORS,
    "video_embeds": _NO_TENSORS,
    "ec_transfer_params": _NO_CACHE_TRANSFER,
    "kv_transfer_params": _NO_CACHE_TRANSFER,
}
OPTION_OBJECT_KEYS = ("chat_template_kwargs", "vllm_xargs", "extra_body", "extra_args")

# Keys that are refused in a part of a message. They are also refused as the type of the part.
DENIED_PART_KEYS = {
    # vLLM's caches identify a medium by its uuid instead of by its content. With the uuid of
    # another caller's image, a caller could read that image or replace it.
    "uuid": "media are known by their contents",
    "image_pil": _NO_TENSORS,
    **DENIED_KEYS,
}

# Keys of media that vLLM accepts as URLs.
URL_KINDS: dict[str, MediaKind] = {"image_url": "image", "video_url": "video", "audio_url": "audio"}
# Types of parts that require a URL, and the key of the part that contains the URL.
URL_KEYS = {**{name: name for name in URL_KINDS}, "input_image": "image_url"}

# Types of parts in transformers and in Anthropic's API.
PART_KINDS: dict[str, MediaKind] = {"image": "image", "video": "video", "audio": "audio"}
SOURCE_FORM = '{"type": "base64", "media_type": "image/png", "data": "..."}'

# A part of a text type is skipped as plain text unless it has one of the examined keys.
EXAMINED_KEYS = frozenset({*DENIED_PART_KEYS, *URL_KINDS, "input_audio"})
TEXT_TYPES = ("text", "input_text", "output_text")

# Keys of lists of parts: in a message, in an input item of OpenAI's Responses API, or in a text to
# score.
PARTS_KEYS = ("content", "output")
# Maximum number of steps from a key's value down to a message: the deepest messages are in a
# conversation in a list of conversations.
MAX_NESTING = 3


@dataclass(frozen=True, slots=True)
class Medium:
    """An image, a video or audio in a request."""

    kind: MediaKind  # that vLLM reads it as
    path: ValuePath  # of its value in the body
    value: str  # a URL, or base64 data
    is_base64: bool = False  # vLLM converts the value to a ``data:`` URL

    @property
    def dotted_path(self) -> str:
        """The path of the value, for messages: ``messages.0.content.1.image_url.url``."""
        return ".".join(map(str, self.path))


def refuse_denied_keys(body: Mapping[str, Any]) -> None:
    """Refuse ``DENIED_KEYS`` with values in a request's body and in its objects with options."""
    for container in (body, *(body.get(name) for name in OPTION_OBJECT_KEYS)):
        if isinstance(container, dict):
            _refuse_keys(drop_empty_denied_keys(container), DENIED_KEYS)


def drop_empty_denied_keys(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object without those of ``DENIED_KEYS`` that have an empty value, as by default."""
    if DENIED_KEYS.keys().isdisjoint(container):
        return container
    return {key: value for key, value in container.items() if value or key not in DENIED_KEYS}


def find_media(body: Mapping[str, Any], keys: Iterable[str]) -> list[Medium]:
    """Return the media of a body in their order; refuse denied keys, and media without content.

    ``keys`` are the keys of the body whose values are texts, conversations, or objects with parts.
    """
    media: list[Medium] = []
    for key in keys:
        # Anthropic's system prompt is a list of parts.
        parts = _parts_in_list if key == "system" else _nested_parts
        for path, part in parts(body.get(key), (key,)):
            media += _media_in_part(part, path)
    return media


def replace_values(body: Mapping[str, Any], values: Mapping[ValuePath, str]) -> dict[str, Any]:
    """Return a copy of a body with new values at some paths; all other values are shared."""
    copy = dict(body)
    for path, value in values.items():
        copy = _copy_with_value(copy, path, value)
    return copy


def _copy_with_value(container: Any, path: ValuePath, value: str) -> Any:
    if not path:
        return value
    copy = container.copy()
    copy[path[0]] = _copy_with_value(container[path[0]], path[1:], value)
    return copy


def _refuse_keys(container: Mapping[str, Any], denied: Mapping[str, str], place: str = "") -> None:
    if denied.keys().isdisjoint(container):
        return
    for name, value in container.items():
        if name in denied and value is not None:
            field = f"{place}.{name}" if place else name
            raise field_error(field, f"not allowed in a request: {denied[name]}")


def _nested_parts(
    value: Any, path: ValuePath, depth: int = MAX_NESTING
) -> Iterator[tuple[ValuePath, dict[str, Any]]]:
    """Yield the parts of messages, items or objects, with their paths, except plain text."""
    if isinstance(value, dict):
        for key in PARTS_KEYS:
            yield from _parts_in_list(value.get(key), (*path, key))
    # A list of token ids contains no parts, and may be long.
    elif isinstance(value, list) and depth and set(map(type, value)) != {int}:
        for index, item in enumerate(value):
            # Skip plain text early, as most items are text.
            if isinstance(item, list) or (
                isinstance(item, dict)
                and any(isinstance(item.get(key), list) for key in PARTS_KEYS)
            ):
                yield from _nested_parts(item, (*path, index), depth - 1)


def _parts_in_list(value: Any, path: ValuePath) -> Iterator[tuple[ValuePath, dict[str, Any]]]:
    """Yield the parts in a list and in its tool results, with their paths, except plain text."""
    for index, part in enumerate(value if isinstance(value, list) else ()):
        if isinstance(part, dict) and not (
            part.get("type") in TEXT_TYPES and EXAMINED_KEYS.isdisjoint(part)
        ):
            yield (*path, index), part
            if part.get("type") == "tool_result":
                yield from _parts_in_list(part.get("content"), (*path, index, "content"))


def _media_in_part(part: dict[str, Any], path: ValuePath) -> Iterator[Medium]:
    place = ".".join(map(str, path))
    type_ = part.get("type")
    if isinstance(type_, str) and type_ in DENIED_PART_KEYS:
        message = f"not allowed in a request: {DENIED_PART_KEYS[type_]}"
        raise field_error(f"{place}.type", message)
    _refuse_keys(part, DENIED_PART_KEYS, place)
    for key, kind in URL_KINDS.items():
        if part.get(key) is not None:
            yield _url_medium(kind, part[key], (*path, key))
    if isinstance(type_, str) and (key := URL_KEYS.get(type_, "")) and part.get(key) is None:
        raise field_error(f"{place}.{key}", "Input should be a URL")
    if part.get("input_audio") is not None or type_ == "input_audio":
        yield _base64_medium("audio", part.get("input_audio"), (*path, "input_audio"), "format")
    if isinstance(type_, str) and type_ in PART_KINDS:
        yield _medium_of_kind(PART_KINDS[type_], part, path)


def _medium_of_kind(kind: MediaKind, part: dict[str, Any], path: ValuePath) -> Medium:
    """Read a part of Anthropic's API, which has a source, or of transformers, which has a URL."""
    source, url_keys = part.get("source"), [key for key in (kind, "url") if part.get(key)]
    if isinstance(source, dict) and source.get("type") == "url":
        return _url_medium(kind, source, (*path, "source"))
    if isinstance(source, dict):
        return _base64_medium(kind, source, (*path, "source"), "media_type")
    if source is not None or not url_keys:
        place = ".".join(map(str, (*path, "source")))
        chat_form = f'{{"type": "{kind}_url", "{kind}_url": {{"url": "data:..."}}}}'
        raise field_error(place, f"Input should be {SOURCE_FORM}; in a chat, send {chat_form}")
    return _url_medium(kind, part[url_keys[0]], (*path, url_keys[0]))


def _url_medium(kind: MediaKind, value: Any, path: ValuePath) -> Medium:
    if isinstance(value, dict):
        value, path = value.get("url"), (*path, "url")
    if not isinstance(value, str):
        raise field_error(".".join(map(str, path)), "Input should be a URL, as a string")
    return Medium(kind, path, value)


def _base64_medium(kind: MediaKind, value: Any, path: ValuePath, type_key: str) -> Medium:
    place = ".".join(map(str, path))
    if not isinstance(value, dict) or not isinstance(value.get("data"), str):
        raise field_error(f"{place}.data", "Input should be base64, as a string")
    type_ = value.get(type_key, "")
    # vLLM writes the type into a ``data:`` URL, where other characters could end the type.
    if not isinstance(type_, str) or not all(c.isalnum() or c in "/.+-" for c in type_):
        raise field_error(f"{place}.{type_key}", "Input should be the type of the data")
    return Medium(kind, (*path, "data"), value["data"], is_base64=True)
