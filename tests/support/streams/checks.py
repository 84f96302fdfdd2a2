"""Compares the streams of one request: its events with several tokens, with one, and no stream."""

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from support.streams.reading import DONE, StreamYields, parse_yields, read_stream, without_varying
from support.streams.requests import CHAT, COMPLETIONS, MESSAGES, RESPONSES, StreamRequest
from worker.app import Worker

# Runs a job with this input, and returns its yields.
Send = Callable[[Mapping[str, Any]], list[Any]]

# The worker's defaults of the keys for chunks.
DEFAULT_SIZES = {"max_batch_size": 50, "min_batch_size": 1, "batch_size_growth_factor": 3}
MAX_YIELD_BYTES = 1_000_000
# The token that ends an answer of the demo model.
END_TOKEN = "<|im_end|>"
# Yields of at most this size are not split because of their size.
SMALL_YIELD_BYTES = 200_000
CHOICE_KEYS = ("finish_reason", "stop_reason", "token_ids")
LAST_TYPES = {
    RESPONSES: ("response.completed", "response.incomplete"),
    MESSAGES: ("message_stop",),
}


@dataclass(frozen=True)
class EventDifference:
    """A difference between two answers, or a stream that breaks a rule.

    Attributes:
        kind: Where it is, without numbers, such as "/v1/completions token: choices.text".
        detail: Both values, or the rule that is broken.
    """

    kind: str
    detail: str


def make_sender(worker: Worker, runner: asyncio.Runner) -> Send:
    """Return a function that runs jobs on a worker, one after the other."""

    def send(payload: Mapping[str, Any]) -> list[Any]:
        # A body arrives as JSON.
        job = {"id": "job-1", "input": json.loads(json.dumps(payload))}

        async def ask() -> list[Any]:
            return [chunk async for chunk in worker.handle(job)]

        return runner.run(ask())

    return send


class EventComparer:
    """Sends requests in all forms.

    Attributes:
        requests: Number of requests so far.
        refused: Number of those that were refused.
        unstable: Number of those that had different answers in the same form.
    """

    def __init__(self, send: Send, *, compares_whole: bool = True) -> None:
        self._send = send
        self._compares_whole = compares_whole
        self.requests = 0
        self.refused = 0
        self.unstable = 0
        # Tokens of the largest event, if the events have them.
        self.largest_event = 0

    def find_differences(self, request: StreamRequest) -> list[EventDifference]:
        """Send a request as a stream of chunks, as one of tokens, and without a stream.

        Returns one difference of each kind.
        """
        self.requests += 1
        chunks = self._stream(request, "chunk")
        tokens = self._stream(request, "token")
        if tokens.error is not None:
            self.refused += 1
        found: dict[str, EventDifference] = {}
        try:
            for difference in self._differences(request, chunks, tokens):
                found.setdefault(difference.kind, difference)
            if found and _read(request, self._stream(request, "token")) != _read(request, tokens):
                self.unstable += 1
                return []
        except ValueError as error:
            kind = f"{request.path} {_kind(str(error))} (rule)"
            found[kind] = EventDifference(kind, str(error))
        return [*found.values()]

    def _stream(self, request: StreamRequest, events: str) -> StreamYields:
        return parse_yields(self._send({**request.job(stream=True), "stream_events": events}))

    def _differences(
        self, request: StreamRequest, chunks: StreamYields, tokens: StreamYields
    ) -> Iterator[EventDifference]:
        path = request.path
        if chunks.error or tokens.error:
            if chunks.error != tokens.error:
                yield EventDifference(f"{path} error", f"{chunks.error} != {tokens.error}")
            return
        for name, stream in (("chunk", chunks), ("token", tokens)):
            for problem in broken_rules(request, stream, events=name):
                yield EventDifference(f"{path} {name}: {_kind(problem)} (rule)", problem)
        if counts := _event_tokens(request, chunks):
            self.largest_event = max(self.largest_event, *counts)
        read = _read(request, tokens)
        yield from _compare(f"{path} chunk != token", _read(request, chunks), read)
        if self._compares_whole:
            (whole,) = self._send(_without_stream(request))
            yield from _compare(f"{path} token != whole", *read_whole(request, read, whole))


def _compare(name: str, left: Any, right: Any) -> Iterator[EventDifference]:
    for place, one, other in diff(left, right):
        if not _is_caused_by_single_tokens(name, place, one, other):
            yield EventDifference(f"{name}: {_kind(place)}", f"{place}: {one} != {other}")


def _without_stream(request: StreamRequest) -> dict[str, Any]:
    job = request.job()
    job["openai_input"].pop("stream_options", None)
    return job


def _read(request: StreamRequest, stream: StreamYields) -> Any:
    return stream.error or read_stream(request.path, stream.events)


def _kind(place: str) -> str:
    return re.sub(r"\.\d+\b|\[[^]]*\]", "", place)


def _is_caused_by_single_tokens(name: str, place: str, one: Any, other: Any) -> bool:
    """Return whether vLLM only omits a token without a text from a count or a list.

    That is so if the token has an event of its own, such as one with the first part of a character:
    its newer parsers don't count it as reasoning, and its route for responses omits its log
    probability. If the end of the answer is ignored and comes first, these parsers hide it only if
    it is merged.
    """
    if isinstance(one, str) and isinstance(other, str) and other == f"{END_TOKEN}{one}":
        return True
    if place.endswith("reasoning_tokens"):
        return bool(one > other)
    if not (place.endswith("logprobs") and name.startswith(RESPONSES)):
        return False
    fewer, more = sorted((one or [], other or []), key=len)
    rest = iter(more)
    return all(logprob in rest for logprob in fewer)


def diff(left: Any, right: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the places of two JSON values where they differ, with both parts."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}, key=str):
            yield from diff(left.get(key), right.get(key), f"{place}.{key}".lstrip("."))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from diff(one, other, f"{place}.{number}")
    elif left != right:
        yield place, left, right


def broken_rules(request: StreamRequest, stream: StreamYields, *, events: str) -> Iterator[str]:
    """Yield the rules that a stream breaks, by itself."""
    yield from _broken_forms(request, stream)
    if (size := max(stream.sizes)) > MAX_YIELD_BYTES:
        yield f"size [{size}]"
    keys = {**DEFAULT_SIZES, **request.chunk_keys}
    counts = _yield_tokens(request, stream)
    if not counts:
        return
    single = request.body.get("stream_interval", 1) == 1
    if single and max(counts) > keys["max_batch_size"]:
        yield f"tokens above the maximum [{counts}]"
    expected = chunk_sizes(sum(counts), keys)
    is_exact = (
        single
        and not keys["max_batch_delay_ms"]
        and max(stream.sizes) < SMALL_YIELD_BYTES
        and _has_one_order(request.body)
    )
    if is_exact and [count for count in counts if count] != expected:
        yield f"tokens of the yields [{counts}, not {expected}]"
    elif is_exact and 0 in counts[: len(expected)]:
        yield f"a yield without tokens [{counts}]"
    if events == "token" and single and max(_event_tokens(request, stream)) > 1:
        yield "an event of several tokens"
    if (usage := _usage(stream)) and usage["completion_tokens"] != sum(counts):
        yield f"tokens of the usage [{usage}, not {sum(counts)}]"


def _has_one_order(body: Mapping[str, Any]) -> bool:
    """Return whether the tokens of a chunk are always the same ones.

    vLLM reads the outputs of several prompts in any order. It echoes a message in an event of its
    own, which has no token.
    """
    prompt = body.get("prompt")
    is_one = not isinstance(prompt, list) or len(prompt) == 1 or isinstance(prompt[0], int)
    return is_one and not (body.get("echo") and "messages" in body)


def _broken_forms(request: StreamRequest, stream: StreamYields) -> Iterator[str]:
    every = [event for one in stream.yields for event in one]
    if [] in stream.yields:
        yield "a yield without an event"
    if request.path in (CHAT, COMPLETIONS):
        if [event.data == DONE for event in every] != [*[False] * (len(every) - 1), True]:
            yield "[DONE] is not the last event"
        if len({tuple(event.data[key] for key in ("id", "model")) for event in stream.events}) > 1:
            yield "several ids"
        return
    if [event.name for event in every] != [event.data["type"] for event in every]:
        yield "an event's name is not its type"
    if every[-1].name not in LAST_TYPES[request.path]:
        yield f"the last event [{every[-1].name}]"
    responses = [event.data["response"]["id"] for event in every if "response" in event.data]
    if len({*responses}) > 1:
        yield "several ids"


def chunk_sizes(tokens: int, keys: Mapping[str, Any]) -> list[int]:
    """Return the tokens of each yield of a stream whose chunks are exact."""
    largest, smallest, growth = (keys[name] for name in DEFAULT_SIZES)
    grows = growth > 1 and smallest >= 1 and largest > smallest
    sizes, size = list[int](), float(smallest if grows else largest)
    while tokens:
        sizes.append(min(tokens, -int(-size // 1)))
        tokens -= sizes[-1]
        size = min(size * growth, largest) if grows else size
    return sizes


def _yield_tokens(request: StreamRequest, stream: StreamYields) -> list[int]:
    """Return the tokens of each yield; an empty list if the events have no counts."""
    counts = _event_tokens(request, stream)
    each = iter(counts)
    return [sum(itertools.islice(each, len(one))) for one in stream.yields] if counts else []


def _event_tokens(request: StreamRequest, stream: StreamYields) -> list[int]:
    """Return the tokens of each event; an empty list if the events have no counts."""
    body = request.body
    if request.path not in (CHAT, COMPLETIONS) or body.get("include_reasoning") is False:
        return []
    if body.get("return_token_ids"):
        count = _count_ids
    elif body.get("logprobs") not in (None, False) and not body.get("echo"):
        count = _count_logprobs
    else:
        return []
    every = [event.data for one in stream.yields for event in one]
    return [0 if data == DONE else sum(map(count, data["choices"])) for data in every]


def _count_ids(choice: Mapping[str, Any]) -> int:
    return len(choice.get("token_ids") or [])


def _count_logprobs(choice: Mapping[str, Any]) -> int:
    logprobs = choice.get("logprobs") or {}
    return len(logprobs.get("content") or logprobs.get("token_logprobs") or [])


def _usage(stream: StreamYields) -> Any:
    usages = [event.data["usage"] for event in stream.events if event.data.get("usage")]
    is_last = usages and not stream.events[-1].data["choices"]
    return usages[-1] if is_last else None


# Parts of a stream, and of an answer without one.
Pair = tuple[Any, Any]


def read_whole(request: StreamRequest, read: Any, whole: Any) -> Pair:
    """Return the parts that a stream and an answer without one have in common.

    ``read`` is the stream as ``read_stream`` returns it, ``whole`` the answer without a stream.
    """
    if "error" in whole:
        return read, whole
    # Parsers write calls of tools differently without a stream.
    if request.body.get("tools") and request.body["tool_choice"] not in ("none", {"type": "none"}):
        return None, None
    return WHOLE_READERS[request.path](read, whole)


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


WHOLE_READERS = {
    CHAT: _read_chat,
    COMPLETIONS: _read_completion,
    RESPONSES: _read_response,
    MESSAGES: _read_message,
}
