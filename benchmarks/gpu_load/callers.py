"""The callers of a load, who record when the tokens of their answers arrive."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gpu_load.loads import NUMBER, Load, Order
from proof.measure import processes
from proof.measure.figures import Answer, percentile


class Link(Protocol):
    """The connections between the callers and a side."""

    def content(self, order: Order) -> str:
        """Return the content of each request, with a placeholder."""

    def send(self, number: int, body: bytes) -> None: ...

    def stop(self, numbers: Sequence[int]) -> None:
        """Cancel the requests with these numbers."""


class Callers:
    """The callers of one load.

    Args:
        order: The load, and the body of its requests.
        number: Number of the first request.
        link: The connections to the side.
    """

    def __init__(self, order: Order, number: int, link: Link) -> None:
        self.next_number = number
        self.posts = 0
        self._bytes = 0
        self._load = order.load
        self._body = link.content(order).encode().split(NUMBER.encode())
        self._link = link
        # The keys of a chat's usage and of a raw job's.
        keys = rb'(?:completion_tokens\\?"|"output")'
        self._usage = re.compile(rb"%b: ?%d\b" % (keys, order.load.tokens))
        self._running: dict[int, Answer] = {}
        self._answers: list[Answer] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, report: Callable[[str], None]) -> dict[str, float]:
        """Start all callers, report the begin and the end of the window, and return its figures.

        Raises:
            processes.Lost: If an answer is an error, or lacks tokens.
        """
        load, began = self._load, time.monotonic()
        for caller in range(load.streams):
            self._call()
            await self._watch(began + (caller + 1) * load.ramp_s / load.streams)
        began, self.posts, self._bytes = time.monotonic(), 0, 0
        report("begin")
        await self._watch(began + load.window_s)
        ended, posts, received = time.monotonic(), self.posts, self._bytes
        report("end")
        running, self._running = self._running, {}
        self._link.stop([*running])
        figures = _figures(load, self._answers, began, ended) if load.stream else {}
        if load.stream:
            tokens = figures["tokens_per_s"] * (ended - began)
            figures["bytes_a_token"] = received / tokens
            if posts:
                figures["tokens_a_post"] = tokens / posts
        return {"began": began, "ended": ended, **figures}

    def receive(self, number: int, words: int, data: bytes) -> None:
        """Record a part of an answer with its number of words; ignore a cancelled answer."""
        self._bytes += len(data)
        if answer := self._running.get(number):
            if words and self._load.stream:
                answer.arrivals.append((time.monotonic(), words))
            if self._usage.search(data):
                answer.tokens = self._load.tokens

    def end(self, number: int, error: str = "") -> None:
        """Record the end of an answer, and send the next request."""
        if answer := self._running.pop(number, None):
            if (error or not self._is_whole(answer)) and not self._failure.done():
                self._failure.set_exception(processes.Lost(error or "an answer lacks tokens"))
            self._call()

    def _call(self) -> None:
        number = self.next_number
        self.next_number += 1
        self._running[number] = answer = Answer(time.monotonic())
        self._answers.append(answer)
        self._link.send(number, str(number).encode().join(self._body))

    def _is_whole(self, answer: Answer) -> bool:
        """Return whether vLLM counted all tokens of an answer, and the caller each as a word."""
        words = sum(count for _, count in answer.arrivals)
        has_words = words == self._load.tokens or self._load.calls_tool or not self._load.stream
        return answer.tokens == self._load.tokens and has_words

    async def _watch(self, until: float) -> None:
        """Wait until a time of the monotonic clock; raise if an answer fails."""
        await asyncio.wait({self._failure}, timeout=max(0.0, until - time.monotonic()))
        if self._failure.done():
            await self._failure


def _figures(load: Load, answers: Sequence[Answer], began: float, ended: float) -> dict[str, float]:
    """Return the figures of streams in a window: medians, and a percentile of all gaps."""
    parts = [
        Answer(answer.sent, [(at, count) for at, count in answer.arrivals if began < at <= ended])
        for answer in answers
    ]
    paces = [
        sum(count for _, count in part.arrivals[1:]) / (part.arrivals[-1][0] - part.arrivals[0][0])
        for part in parts
        if len(part.arrivals) > 1
    ]
    firsts = [
        1000 * (answer.arrivals[0][0] - answer.sent)
        for answer in answers
        if answer.arrivals and answer.arrivals[0][0] > began
    ]
    tokens = sum(count for part in parts for _, count in part.arrivals)
    return {
        "tokens_per_s": tokens / (ended - began),
        "pace": percentile(paces, 0.5) / load.pace,
        "first_p50": percentile(firsts, 0.5),
        "gap_p99": percentile([1000 * gap for part in parts for gap in part.gaps], 0.99),
    }
