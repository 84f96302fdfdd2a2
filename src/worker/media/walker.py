"""Finds the media in a request's body, and refuses what must not stand where vLLM reads.

Only places that vLLM reads are looked at: the schema of a tool, its arguments and the variables of
a chat template may use any of these words.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worker.errors import InvalidInput

Kind = Literal["image", "video", "audio"]
# Keys and indexes that lead to a value.
Path = tuple[str | int, ...]

_PROCESSOR = "it is the operator's to set"
_TENSORS = "this worker takes text, token ids and media"
_TRANSFER = "this worker shares its cache with no other"

# Keys of a body, and of the objects in it whose values vLLM merges with such keys: they reach the
# libraries that decode media, or other machines, or set what the worker decides.
DENIED = {
    "mm_processor_kwargs": _PROCESSOR,
    "media_io_kwargs": _PROCESSOR,
    "use_audio_in_video": _PROCESSOR,
    "prompt_embeds": _TENSORS,
    "image_embeds": _TENSORS,
    "audio_embeds": _TENSORS,
    "video_embeds": _TENSORS,
    "kv_transfer_params": _TRANSFER,
    "ec_transfer_params": _TRANSFER,
    "request_id": "it is the job's id",
}
HOLDERS = ("chat_template_kwargs", "vllm_xargs", "extra_body", "extra_args")

# Keys of a part of a message, and values of its type.
DENIED_IN_PARTS = {
    # vLLM's caches know a medium by its uuid instead of by what it shows: whoever knows, or
    # guesses, the uuid of another caller's image could read it, or put another in its place.
    "uuid": "media are known by their contents",
    "image_pil": _TENSORS,
    **{name: reason for name, reason in DENIED.items() if name != "request_id"},
}

# The keys of media that vLLM takes as URLs.
URLS: dict[str, Kind] = {"image_url": "image", "video_url": "video", "audio_url": "audio"}
# Types of parts that have to have one.
NEEDED = {**{name: name for name in URLS}, "input_image": "image_url"}

# Keys of a part that are looked at, and types of the parts that most messages have.
READ = frozenset({*DENIED_IN_PARTS, *URLS, "input_audio"})
TEXTS = ("text", "input_text", "output_text")

# Keys of a message, of an item of a response's input, and of a text to be scored.
WITH_PARTS = ("content", "output")
# Lists of conversations are the deepest: a body, a list, a conversation, a message.
DEPTH = 3


@dataclass(frozen=True, slots=True)
class Medium:
    """One image, video or audio.

    Args:
        kind: what vLLM reads it as.
        path: where its value stands in the body.
        value: a URL or, if it is ``encoded``, base64.
        encoded: whether vLLM makes the ``data:`` URL itself.
    """

    kind: Kind
    path: Path
    value: str
    encoded: bool = False

    @property
    def name(self) -> str:
        """Where it stands, for messages: ``messages.0.content.1.image_url.url``."""
        return ".".join(map(str, self.path))


def refuse(body: Mapping[str, Any]) -> None:
    """Refuse the keys of a request's body that callers must not set.

    Raises:
        InvalidInput: naming the key.
    """
    for holder in (body, *(body.get(name) for name in HOLDERS)):
        if isinstance(holder, dict):
            _refuse_in(holder, DENIED)


def find(body: Mapping[str, Any], keys: Iterable[str]) -> list[Medium]:
    """Return the media of a body, in its order.

    Args:
        body: of a request.
        keys: those with texts, conversations, or objects with parts.

    Raises:
        InvalidInput: a key of a part is refused, or a medium has no URL; naming the place.
    """
    found: list[Medium] = []
    for key in keys:
        # Anthropic's system prompt is a list of parts.
        parts = _parts if key == "system" else _parts_of
        for path, part in parts(body.get(key), (key,)):
            found += _media(part, path)
    return found


def replaced(body: Mapping[str, Any], values: Mapping[Path, str]) -> dict[str, Any]:
    """Return a copy of a body with other values in some places; it shares all other parts."""
    changed = dict(body)
    for path, value in values.items():
        changed = _with(changed, path, value)
    return changed


def _with(holder: Any, path: Path, value: str) -> Any:
    if not path:
        return value
    copied = holder.copy()
    copied[path[0]] = _with(holder[path[0]], path[1:], value)
    return copied


def _refuse_in(holder: Mapping[str, Any], denied: Mapping[str, str], place: str = "") -> None:
    if denied.keys().isdisjoint(holder):
        return
    for name, value in holder.items():
        if name in denied and value is not None:
            field = f"{place}.{name}" if place else name
            raise InvalidInput(f"{field}: not in a request: {denied[name]}", param=field)


def _parts_of(value: Any, path: Path, depth: int = DEPTH) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the parts of a message, an item, or an object with parts; of all in a list.

    Only those that are more than a text.
    """
    if isinstance(value, dict):
        for key in WITH_PARTS:
            yield from _parts(value.get(key), (*path, key))
    # Token ids hold none, and may be many.
    elif isinstance(value, list) and depth and set(map(type, value)) != {int}:
        for index, item in enumerate(value):
            # Most are a text.
            if isinstance(item, list) or (
                isinstance(item, dict)
                and any(isinstance(item.get(key), list) for key in WITH_PARTS)
            ):
                yield from _parts_of(item, (*path, index), depth - 1)


def _parts(value: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the parts in a list that are more than a text."""
    for index, part in enumerate(value if isinstance(value, list) else ()):
        if isinstance(part, dict) and not (part.get("type") in TEXTS and READ.isdisjoint(part)):
            yield (*path, index), part
            if part.get("type") == "tool_result":
                yield from _parts(part.get("content"), (*path, index, "content"))


def _media(part: dict[str, Any], path: Path) -> Iterator[Medium]:
    place = ".".join(map(str, path))
    type_ = part.get("type")
    if isinstance(type_, str) and type_ in DENIED_IN_PARTS:
        message = f"{place}.type: not in a request: {DENIED_IN_PARTS[type_]}"
        raise InvalidInput(message, param=f"{place}.type")
    _refuse_in(part, DENIED_IN_PARTS, place)
    for key, kind in URLS.items():
        if part.get(key) is not None:
            yield _of_url(kind, part[key], (*path, key))
    if isinstance(type_, str) and (key := NEEDED.get(type_, "")) and part.get(key) is None:
        raise _without(f"{place}.{key}", "a URL")
    if part.get("input_audio") is not None or type_ == "input_audio":
        yield _of_object("audio", part.get("input_audio"), (*path, "input_audio"), "format")
    if type_ == "image":
        source = part.get("source")
        if isinstance(source, dict) and source.get("type") == "url":
            yield _of_url("image", source, (*path, "source"))
        else:
            yield _of_object("image", source, (*path, "source"), "media_type")


def _of_url(kind: Kind, value: Any, path: Path) -> Medium:
    if isinstance(value, dict):
        value, path = value.get("url"), (*path, "url")
    if not isinstance(value, str):
        raise _without(".".join(map(str, path)), "a URL, as a string")
    return Medium(kind, path, value)


def _of_object(kind: Kind, value: Any, path: Path, type_key: str) -> Medium:
    """Read an object with base64, and the type of what is encoded."""
    place = ".".join(map(str, path))
    if not isinstance(value, dict) or not isinstance(value.get("data"), str):
        raise _without(f"{place}.data", "base64, as a string")
    type_ = value.get(type_key, "")
    # vLLM writes it into a URL.
    if not isinstance(type_, str) or not all(c.isalnum() or c in "/.+-" for c in type_):
        raise _without(f"{place}.{type_key}", "the type of the data")
    return Medium(kind, (*path, "data"), value["data"], encoded=True)


def _without(field: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"{field}: Input should be {wanted}", param=field)
