"""Compares a stream with the answer to the same request without a stream."""

from collections.abc import Mapping
from typing import Any

from support.streams.reading import without_varying
from support.streams.requests import CHAT, COMPLETIONS, MESSAGES, RESPONSES, StreamRequest

Pair = tuple[Any, Any]
CHOICE_KEYS = ("finish_reason", "stop_reason", "token_ids")


def read_whole(request: StreamRequest, read: Any, whole: Any) -> Pair:
    """Return the parts that a stream and an answer without one have in common.

    Args:
        request: The request of both.
        read: The stream, as ``read_stream`` returns it.
        whole: The answer without a stream.
    """
    if "error" in whole:
        return read, whole
    # Parsers write calls of tools differently without a stream.
    if request.body.get("tools") and request.body["tool_choice"] not in ("none", {"type": "none"}):
        return None, None
    return READERS[request.path](read, whole)


def _read_chat(read: Any, whole: Any) -> Pair:
    keys = (*CHOICE_KEYS, "content", "reasoning", "logprobs")
    choices = {
        choice["index"]: {
            **choice,
            "content": choice["message"]["content"] or "",
            "reasoning": choice["message"].get("reasoning") or "",
            "logprobs": (choice.get("logprobs") or {}).get("content"),
        }
        for choice in whole["choices"]
    }
    return _comparable_parts(read, whole, choices, keys)


def _read_completion(read: Any, whole: Any) -> Pair:
    choices = {choice["index"]: choice for choice in whole["choices"]}
    return _comparable_parts(read, whole, choices, (*CHOICE_KEYS, "text", "logprobs"))


def _comparable_parts(read: Any, whole: Any, choices: Any, keys: tuple[str, ...]) -> Pair:
    usages = read["usages"].get("", [])
    return (
        {"choices": _only(read["choices"], keys), "usage": usages},
        {"choices": _only(choices, keys), "usage": [whole["usage"]] if usages else []},
    )


def _only(choices: Mapping[int, Any], keys: tuple[str, ...]) -> Any:
    return {index: {key: one.get(key) for key in keys} for index, one in choices.items()}


def _read_response(read: Any, whole: Any) -> Pair:
    return read["response"], without_varying(whole)


def _read_message(read: Any, whole: Any) -> Pair:
    keys = ("stop_reason", "stop_sequence", "usage")
    text = "".join(block["deltas"] for block in read["blocks"])
    blocks = "".join(block.get("text") or "" for block in whole["content"])
    return (
        {"text": text, **{key: read.get(key) for key in keys}},
        {"text": blocks, **{key: whole.get(key) for key in keys}},
    )


READERS = {
    CHAT: _read_chat,
    COMPLETIONS: _read_completion,
    RESPONSES: _read_response,
    MESSAGES: _read_message,
}
