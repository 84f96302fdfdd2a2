"""Hands out the outputs of a stream when they are due, so that vLLM makes one event of several.

``worker.chunking`` says when that is, and describes the whole way of a chunk. vLLM's collector
merges the outputs of a request that its reader has not fetched yet. The reader, a route of vLLM's
server or the raw path, fetches each immediately, unless it is busy.
"""

import asyncio
from argparse import Namespace
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestOutputCollector

from worker.chunking import PIECES_LIMIT_BYTES, Schedule, current_schedule
from worker.engine.seam.patches import COLLECTOR

_ONE_CHANGE = "sends one change of a call for each output, and loses others"
# vLLM's parsers of tool calls that give other answers if they get several tokens together, and the
# difference. ``tests/contract/test_vllm_parsers.py`` tries all parsers.
SINGLE_TOKEN_TOOL_PARSERS = {
    "apertus": "the end of a text before a call is lost",
    "deepseek_v3": _ONE_CHANGE,
    "deepseek_v31": _ONE_CHANGE,
    "ernie45": "sends one call for each output",
    "functiongemma": _ONE_CHANGE,
    "gigachat3": _ONE_CHANGE,
    "granite-20b-fc": _ONE_CHANGE,
    "hunyuan_a13b": _ONE_CHANGE,
    "hy_v3": "the arguments of a call that is cut off are lost",
    "hy_v4": "the arguments of a call that is cut off are lost",
    "internlm": _ONE_CHANGE,
    "jamba": _ONE_CHANGE,
    "llama3_json": _ONE_CHANGE,
    "llama4_json": _ONE_CHANGE,
    "minicpm5": "a text before a call is lost, and a call that is cut off ends as if complete",
    "poolside_v1": "the arguments of a call that is cut off end as if they were complete",
    "step3": "arguments are followed by others",
    "xlam": "arguments are lost or sent twice",
}
# The same for parsers of reasoning.
SINGLE_TOKEN_REASONING_PARSERS = {
    "ernie45": "markers of the response are left in the text, or a part of it is lost",
    "granite": "parts of markers become reasoning, and parts of the reasoning are lost",
    "hunyuan_a13b": "raises an exception",
    "inkling": "a marker in the text, which is an error, is lost",
    "muse_glimmer": "a text between reasoning and a call is lost",
    "olmo3": "the text that is merged with the end of reasoning is lost",
}
# Estimates of the bytes of JSON that events have for a character of text, for a token, and for each
# candidate of a token with log probabilities.
CHARACTER_BYTES = 6
TOKEN_BYTES = 8
CANDIDATE_BYTES = 250
# Maximum number of readers that are woken in an iteration of the loop: about two milliseconds.
READERS_PER_ITERATION = 16


@dataclass(slots=True)
class _WaitingOutput:
    """An output, with its number of tokens and its estimated size in bytes of JSON.

    An output with the first token of a choice stays alone. The token may begin the reasoning, and
    some parsers look only for such a token alone.
    """

    output: Any
    tokens: int
    size: int
    is_alone: bool = False


class ReaderWaker:
    """Wakes the readers of due outputs, a few in each iteration of the engine's loop.

    With a thousand streams, an iteration that makes the events of all would take a tenth of a
    second, and a new request needs several iterations until its first token.
    """

    def __init__(self) -> None:
        self._waiting: deque[DueOutputs] = deque()
        self._left = READERS_PER_ITERATION
        self._is_scheduled = False

    def wake(self, outputs: "DueOutputs") -> None:
        if self._left:
            self._left -= 1
            outputs.wake_reader()
        else:
            self._waiting.append(outputs)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_iteration)

    def _start_iteration(self) -> None:
        count = min(READERS_PER_ITERATION, len(self._waiting))
        for _ in range(count):
            self._waiting.popleft().wake_reader()
        self._left = READERS_PER_ITERATION - count
        self._is_scheduled = count > 0
        if count:
            asyncio.get_running_loop().call_soon(self._start_iteration)


class DueOutputs(RequestOutputCollector):  # type: ignore[misc]  # Any
    """The outputs of one request of a stream, which become due by the stream's schedule."""

    def __init__(
        self, output_kind: Any, request_id: str, schedule: Schedule, waker: ReaderWaker
    ) -> None:
        super().__init__(output_kind, request_id)
        self._schedule = schedule
        self._waker = waker
        # Resolved when the waiting reader can fetch outputs; None until one waits.
        self._reader: asyncio.Future[None] | None = None
        self._entries: deque[_WaitingOutput] = deque()
        # The choices that have begun.
        self._begun: set[int] = set()
        # Number of entries, from the first one, that are due, and the number of their tokens.
        self._due = 0
        self._due_tokens = 0

    def put(self, output: Any) -> None:
        """Add an output, or the exception that follows the outputs."""
        if not isinstance(output, RequestOutput):
            self.make_due()
            self._schedule.remove(self)
            super().put(output)
            self._waker.wake(self)
            return
        schedule, policy = self._schedule, self._schedule.policy
        entry = _WaitingOutput(output, tokens=0, size=0)
        for choice in output.outputs:
            count = len(choice.token_ids)
            entry.tokens += count
            entry.size += TOKEN_BYTES * count + CHARACTER_BYTES * len(choice.text)
            if choice.logprobs:
                entry.size += CANDIDATE_BYTES * count * len(choice.logprobs[0])
            is_end = choice.finish_reason is not None
            if choice.index not in self._begun or (is_end and schedule.separates_end):
                self._begun.add(choice.index)
                entry.is_alone = True
        # All outputs that the reader has not fetched yet go out together, unless sizes are exact.
        joins_due = (
            self._due > 0
            and self._due == len(self._entries)
            and policy.max_delay > 0
            and self._due_tokens + entry.tokens <= policy.largest
        )
        if not joins_due:
            schedule.make_space(entry.tokens)
        last = self._entries[-1] if joins_due or self._due < len(self._entries) else None
        if (
            schedule.merges
            and last
            and not (last.is_alone or entry.is_alone)
            and last.size + entry.size <= PIECES_LIMIT_BYTES
        ):
            last.output.add(output, aggregate=True)
            last.tokens += entry.tokens
            last.size += entry.size
        else:
            self._entries.append(entry)
        if joins_due:
            self._due = len(self._entries)
            self._due_tokens += entry.tokens
        else:
            schedule.add(self, entry.tokens)
        if output.finished:
            self.make_due()
            schedule.remove(self)

    def make_due(self) -> None:
        if self._due < len(self._entries):
            self._due = len(self._entries)
            self._due_tokens = sum(entry.tokens for entry in self._entries)
            self._waker.wake(self)

    def wake_reader(self) -> None:
        if self._reader and not self._reader.done():
            self._reader.set_result(None)

    def get_nowait(self) -> Any:
        if not self._due:
            return super().get_nowait()
        self._due -= 1
        entry = self._entries.popleft()
        self._due_tokens -= entry.tokens
        choices = entry.output.outputs
        self._schedule.note_read(self, [len(choice.token_ids) for choice in choices])
        return entry.output

    async def get(self) -> Any:
        while (output := self.get_nowait()) is None:
            # An ``asyncio.Event`` takes twice the time, for each chunk of each stream.
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return output

    def close(self) -> None:
        super().close()
        self._schedule.remove(self)


def make_collector(output_kind: Any, request_id: str, *, waker: ReaderWaker) -> Any:
    """Make a request's collector, in place of vLLM's class: for a scheduled stream, our own."""
    schedule = current_schedule.get(None)
    if schedule is None or output_kind is not RequestOutputKind.DELTA:
        return RequestOutputCollector(output_kind, request_id)
    return DueOutputs(output_kind, request_id, schedule, waker)


def separate_outputs(schedule: Schedule, body: Mapping[str, Any], arguments: Namespace) -> None:
    """Let the schedule of a request's stream merge only the outputs that vLLM's server can take.

    Some parsers need single tokens, and those of the operator's plugins may need them. Events with
    usage statistics have one token each. ``arguments`` are vLLM's.
    """
    options = body.get("stream_options")
    if isinstance(options, Mapping) and options.get("continuous_usage_stats"):
        schedule.merges = False
    if "prompt" in body:  # completions are not parsed
        return
    # vLLM copies REASONING_PARSER to this option, where it can also be set.
    reasoning = arguments.structured_outputs_config
    # Tokens of reasoning are not counted if they are merged with one whose text is withheld because
    # it may begin a stop string, or with the end of the answer, which has no text.
    schedule.separates_end = bool(reasoning.reasoning_parser)
    withholds = bool(body.get("stop") or body.get("stop_sequences"))
    if (schedule.separates_end and withholds) or _needs_single_tokens(
        reasoning.reasoning_parser,
        reasoning.reasoning_parser_plugin,
        SINGLE_TOKEN_REASONING_PARSERS,
    ):
        schedule.merges = False
    if body.get("tools") and _needs_single_tokens(
        arguments.tool_call_parser, arguments.tool_parser_plugin, SINGLE_TOKEN_TOOL_PARSERS
    ):
        schedule.merges = False


def _needs_single_tokens(parser: str | None, plugin: str | None, table: Mapping[str, str]) -> bool:
    return bool(parser) and (bool(plugin) or parser in table)


def read_streams_when_due() -> None:
    """Make vLLM's client collect outputs this way."""
    COLLECTOR.replace(resolve_name(COLLECTOR.owner), partial(make_collector, waker=ReaderWaker()))
