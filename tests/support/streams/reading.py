"""Puts together the parts of a stream: the same object for all numbers of events.

All names and numbers that differ between two equal requests, such as ids, are left out.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from support.streams.requests import CHAT, COMPLETIONS, MESSAGES, RESPONSES

DONE = "[DONE]"
# Keys of objects of /v1/responses that differ between two equal requests.
VARYING_KEYS = {"id", "item_id", "call_id", "created_at", "completed_at", "sequence_number"}
_EVENT = re.compile(r"(?:event: (?P<name>[\w.]+)\n)?data: (?P<data>[^\n]*)\n\n")


@dataclass(frozen=True)
class Event:
    """An event of a stream: its name, if any, and its data."""

    name: str | None
    data: Any


@dataclass(frozen=True)
class StreamYields:
    """The yields of a job, each with its events; ``error`` is the one that the job failed with."""

    yields: list[list[Event]]
    sizes: list[int]
    error: Any = None

    @property
    def events(self) -> list[Event]:
        """All events, without [DONE]."""
        return [event for one in self.yields for event in one if event.data != DONE]


def parse_yields(chunks: Iterable[Any]) -> StreamYields:
    """Return the events of a job's yields.

    Raises:
        ValueError: A yield is not made of whole events.
    """
    yields, sizes, error = [], [], None
    for chunk in chunks:
        if isinstance(chunk, str):
            yields.append(_parse_events(chunk))
            sizes.append(len(json.dumps(chunk, ensure_ascii=False).encode()))
        else:
            error = json.loads(chunk["error"])["error"]
            del error["request_id"]
    return StreamYields(yields, sizes, error)


def _parse_events(text: str) -> list[Event]:
    matches = [*_EVENT.finditer(text)]
    if "".join(match[0] for match in matches) != text:
        raise ValueError(f"not whole events: {text[-200:]!r}")
    return [
        Event(match["name"], DONE if match["data"] == DONE else json.loads(match["data"]))
        for match in matches
    ]


def read_stream(path: str, events: list[Event]) -> dict[str, Any]:
    """Return the answer that a client has read after all events."""
    return READERS[path]([event.data for event in events])


def _read_choices(events: list[Any], read_part: Any) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = defaultdict(dict)
    usages: dict[str, list[Any]] = defaultdict(list)
    answer: dict[str, Any] = {}
    for event in events:
        answer |= {key: event[key] for key in ("prompt_token_ids", "prompt_text") if event.get(key)}
        if event.get("usage"):
            # The events of several choices arrive in any order.
            usages[",".join(str(part["index"]) for part in event["choices"])].append(event["usage"])
        for part in event["choices"]:
            choice = choices[part["index"]]
            read_part(choice, part)
            _read_end(choice, part)
    return {**answer, "choices": dict(sorted(choices.items())), "usages": dict(usages)}


def _read_end(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key in ("finish_reason", "stop_reason", "prompt_token_ids"):
        if part.get(key) is not None:
            _set_once(choice, key, part[key])
    if part.get("token_ids") is not None:
        choice["token_ids"] = choice.get("token_ids", []) + part["token_ids"]


def _set_once(choice: dict[str, Any], key: str, value: Any) -> None:
    if key in choice:
        raise ValueError(f"a second {key}")
    choice[key] = value


def read_chat(events: list[Any]) -> dict[str, Any]:
    return _read_choices(events, _read_delta)


def _read_delta(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    delta = part["delta"]
    if "role" in delta:
        _set_once(choice, "role", delta["role"])
    elif not choice:
        raise ValueError("a part of a choice before its role")
    for key in ("content", "reasoning"):
        choice[key] = choice.get(key, "") + (delta.get(key) or "")
    for call in delta.get("tool_calls") or []:
        _read_call(choice.setdefault("tool_calls", {}), call)
    if part.get("logprobs"):
        choice["logprobs"] = choice.get("logprobs", []) + part["logprobs"]["content"]


def _read_call(calls: dict[int, Any], part: Mapping[str, Any]) -> None:
    call = calls.setdefault(part["index"], {"arguments": ""})
    function = part.get("function") or {}
    for key, value in (
        ("has_id", bool(part.get("id"))),
        ("type", part.get("type")),
        ("name", function.get("name")),
    ):
        if value:
            _set_once(call, key, value)
    call["arguments"] += function.get("arguments") or ""


def read_completion(events: list[Any]) -> dict[str, Any]:
    return _read_choices(events, _read_text)


def _read_text(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    choice["text"] = choice.get("text", "") + part["text"]
    if part.get("logprobs"):
        read = choice.setdefault("logprobs", defaultdict(list))
        for key, values in part["logprobs"].items():
            read[key] += values


def read_response(events: list[Any]) -> dict[str, Any]:
    """Return the items of a response from its deltas, and from its last events."""
    deltas: dict[int, dict[str, Any]] = defaultdict(dict)
    finished: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        kind = event["type"]
        if kind.endswith(".delta"):
            read = deltas[event["output_index"]]
            read[kind] = read.get(kind, "") + event["delta"]
            if event.get("logprobs"):
                read["logprobs"] = read.get("logprobs", []) + event["logprobs"]
        elif kind.endswith(".done"):
            finished[kind].append(without_varying(event))
    kinds = [kind for kind, _ in groupby(event["type"] for event in events)]
    if [event["sequence_number"] for event in events] != [*range(len(events))]:
        raise ValueError("the sequence numbers have gaps")
    last = events[-1].get("response") if events else None
    return {
        "deltas": dict(deltas),
        "finished": dict(finished),
        "kinds": kinds,
        "response": without_varying(last),
    }


def without_varying(value: Any) -> Any:
    """Return a part of a response without the names and times that differ between requests."""
    if isinstance(value, dict):
        return {
            key: without_varying(inner) for key, inner in value.items() if key not in VARYING_KEYS
        }
    return [without_varying(inner) for inner in value] if isinstance(value, list) else value


def read_message(events: list[Any]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"blocks": blocks}
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            answer["start"] = {k: v for k, v in event["message"].items() if k != "id"}
        elif kind == "content_block_start":
            block = {k: v for k, v in event["content_block"].items() if k != "id"}
            blocks.append({**block, "deltas": ""})
        elif kind == "content_block_delta":
            delta = event["delta"]
            texts = [delta.get(key) for key in ("text", "partial_json", "thinking")]
            blocks[event["index"]]["deltas"] += "".join(filter(None, texts))
        elif kind == "message_delta":
            answer |= {**event["delta"], "usage": event["usage"]}
    answer["kinds"] = [kind for kind, _ in groupby(event["type"] for event in events)]
    return answer


READERS = {
    CHAT: read_chat,
    COMPLETIONS: read_completion,
    RESPONSES: read_response,
    MESSAGES: read_message,
}
