"""Gathers the outputs of a stream into chunks, one per yield.

Two objects with one ``ChunkPolicy`` (``routes.answer.chunk_policy``) decide a stream's chunks.
``app`` makes both, and sets ``current_schedule`` for the task on the engine's loop in which the
answer's source runs, and all tasks that vLLM's server starts for it.

On the engine's loop, the ``Schedule`` decides when outputs are read, so that all that have arrived
by then can become one. Each request that vLLM gets in this context has a queue
(``engine.run.requests.due_outputs``), which tells the schedule what arrives (``add``), and holds it
until the schedule calls ``make_due``. vLLM's server makes an event of what it then reads. An event
doesn't say how many tokens it has, so the queue notes them as they are read (``note_read``), and
``dialects.openai.forward`` takes them for the event (``take_event_weight``). A raw job has a piece
for each token instead (``routes.generation``).

On the loop of the jobs, a ``Chunker`` makes yields of the pieces that have arrived; at the end, of
the rest. ``job_loop.delivery`` posts a yield when the previous one's post has ended. A stream that
is not chunked, such as a whole answer, has no schedule, and is read immediately.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

# The platform refuses stream chunks above 1 MB. The envelope is the other content of a yield: keys,
# usage, finish reasons.
YIELD_LIMIT_BYTES = 1_000_000
ENVELOPE_BYTES = 50_000
PIECES_LIMIT_BYTES = YIELD_LIMIT_BYTES - ENVELOPE_BYTES
# The platform drops a result above 20 MB, but completes the job. An answer that is not streamed is
# posted as a result only.
RESULT_LIMIT_BYTES = 19_000_000


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """The smallest part of an answer that is sent on its own: a token's text, or an SSE event."""

    value: T
    weight: int  # tokens
    size: int  # bytes of JSON
    produced_at: float = field(default_factory=time.monotonic)  # by the engine (``time.monotonic``)


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """Sizes of a stream's chunks: chunk k has weight ``smallest * growth**k``, up to ``largest``.

    Without growth, all have ``largest``. No piece waits longer than ``max_delay`` seconds; with 0,
    pieces wait until a chunk is full.
    """

    largest: int
    smallest: float
    growth: float
    max_delay: float

    @property
    def first_size(self) -> float:
        return self.smallest if self._grows else self.largest

    def next_size(self, size: float) -> float:
        if not self._grows or size >= self.largest:
            return size
        return min(size * self.growth, self.largest)

    @property
    def _grows(self) -> bool:
        return self.growth > 1 and self.smallest >= 1 and self.largest > self.smallest


# Sends every piece as its own chunk.
ONE_BY_ONE = ChunkPolicy(largest=1, smallest=1, growth=1, max_delay=0)


class OutputQueue(Protocol):
    """The outputs of one request of a stream."""

    def make_due(self) -> None:
        """Wake the reader, which takes all outputs that wait."""


class Schedule:
    """Decides when the outputs of a stream are due for its reader. Use on the engine's loop.

    The outputs are due when their tokens fill the next chunk, or when the maximum delay of the
    policy has passed since the previous chunk: so an output waits for at most the delay, and a
    stream slower than the delay never waits. A stream has a queue for each of its requests, such as
    several prompts, and one schedule.

    With ``merges``, outputs that are read together become one output, so that the reader makes one
    event of them; with ``separates_end``, the last output is not merged with others. The chunks'
    sizes are in tokens.
    """

    def __init__(self, policy: ChunkPolicy, *, merges: bool) -> None:
        self.policy = policy
        self.merges = merges
        self.separates_end = False
        self._size = policy.first_size
        self._tokens = 0
        self._queues: list[OutputQueue] = []
        # Time of the loop at which the last chunk became due; None before the first one.
        self._last_due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        # For each choice of the outputs that were read, its queue and its tokens: the weights of
        # the events that the reader makes next.
        self._read: deque[tuple[OutputQueue, int]] = deque()
        self._was_read = False

    def add(self, queue: OutputQueue, tokens: int) -> None:
        """Count tokens that wait in a queue for the next chunk."""
        self._tokens += tokens
        if queue not in self._queues:
            self._queues.append(queue)
        if self._tokens >= self._size:
            self.start_next_chunk()
        elif self.policy.max_delay and self._timer is None:
            loop = asyncio.get_running_loop()
            began = loop.time() if self._last_due is None else self._last_due
            deadline = began + self.policy.max_delay
            self._timer = loop.call_at(deadline, self.start_next_chunk)

    def remove(self, queue: OutputQueue) -> None:
        """Wait no longer for a request that has ended; its tokens stay part of the next chunk."""
        if queue in self._queues:
            self._queues.remove(queue)
            if not self._queues:
                self._stop_timer()

    def make_space(self, tokens: int) -> None:
        """Make outputs due if the next chunk, with these tokens, would exceed its largest size."""
        if self._tokens and self._tokens + tokens > self.policy.largest:
            self.start_next_chunk()

    def start_next_chunk(self) -> None:
        """Make all waiting outputs due; tokens that arrive later are counted for another chunk."""
        self._stop_timer()
        self._last_due = asyncio.get_running_loop().time()
        self._tokens = 0
        self._size = self.policy.next_size(self._size)
        queues, self._queues = self._queues, []
        for queue in queues:
            queue.make_due()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note_read(self, queue: OutputQueue, weights: Sequence[int]) -> None:
        """Record the tokens of each choice of an output that is read.

        By then, the reader has made all events of the queue's previous output. If a choice got no
        event, because a parser needs more text, its tokens are counted for the next event.
        """
        self._was_read = True
        first, *others = weights or (0,)
        if self._read:
            first += sum(tokens for owner, tokens in self._read if owner is queue)
            self._read = deque(entry for entry in self._read if entry[0] is not queue)
        self._read.append((queue, first))
        self._read.extend((queue, tokens) for tokens in others)

    def take_event_weight(self) -> int:
        """Return the tokens of the next event that has a part of the answer.

        Returns 1 for each event if the stream has no queue.
        """
        if not self._was_read:
            return 1
        return self._read.popleft()[1] if self._read else 0


# The schedule of the stream whose source runs in this context.
current_schedule: ContextVar[Schedule] = ContextVar("current_schedule")


class Chunker(Generic[T]):
    """Gathers the pieces of one stream into chunks, according to a policy.

    With a maximum delay, all pieces that have arrived are due: the stream's schedule has made them
    wait. Without one, chunks have exactly their sizes, also if many pieces arrive together.
    """

    def __init__(self, policy: ChunkPolicy) -> None:
        self._policy = policy
        self._size = policy.first_size
        self._waiting: deque[Piece[T]] = deque()
        self._weight = 0
        self._bytes = 0

    def add(self, pieces: list[Piece[T]]) -> None:
        self._waiting.extend(pieces)
        self._weight += sum(piece.weight for piece in pieces)
        self._bytes += sum(piece.size for piece in pieces)

    @property
    def is_due(self) -> bool:
        is_full = self._weight > 0 if self._policy.max_delay else self._weight >= self._size
        return is_full or self._bytes > PIECES_LIMIT_BYTES

    def take_due_chunk(self) -> list[T]:
        """Return the next chunk, or an empty list if it is not due."""
        return self.take_chunk() if self.is_due else []

    def take_chunk(self) -> list[T]:
        """Return the next chunk, due or not, or an empty list; for a stream's end."""
        limit = self._policy.largest if self._policy.max_delay else self._size
        chunk: list[T] = []
        weight = size = 0
        fits = self._weight <= limit and self._bytes <= PIECES_LIMIT_BYTES
        # A piece without weight does not go into a chunk that is full without it.
        if fits and self._waiting and self._waiting[-1].weight > 0:
            chunk = [piece.value for piece in self._waiting]
            weight, size = self._weight, self._bytes
            self._waiting.clear()
        while self._waiting and weight < limit:
            piece = self._waiting[0]
            is_too_heavy = weight + piece.weight > self._policy.largest
            if chunk and (is_too_heavy or size + piece.size > PIECES_LIMIT_BYTES):
                break
            self._waiting.popleft()
            chunk.append(piece.value)
            weight += piece.weight
            size += piece.size
        self._weight -= weight
        self._bytes -= size
        if chunk:
            self._size = self._policy.next_size(self._size)
        return chunk
