"""Gathers the pieces of an answer into chunks, one per yield. Does no I/O and reads no clock."""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
    """The smallest part of an answer that is sent on its own: a token's text, or an SSE event.

    Attributes:
        value: The content.
        weight: Number of tokens or events.
        size: Size in bytes of JSON.
        produced_at: Time at which the engine produced the piece, in seconds (``time.monotonic``).
    """

    value: T
    weight: int
    size: int
    produced_at: float = field(default_factory=time.monotonic)


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
    def grows(self) -> bool:
        return self.growth > 1 and self.smallest >= 1 and self.largest > self.smallest


# Sends every piece as its own chunk.
ONE_BY_ONE = ChunkPolicy(largest=1, smallest=1, growth=1, max_delay=0)


class Chunker(Generic[T]):
    """Gathers the pieces of one stream into chunks, according to a policy."""

    def __init__(self, policy: ChunkPolicy) -> None:
        self._policy = policy
        self._target: float = policy.smallest if policy.grows else policy.largest
        self._waiting: deque[Piece[T]] = deque()
        self._weight = 0
        self._size = 0

    def add(self, pieces: list[Piece[T]]) -> None:
        self._waiting.extend(pieces)
        self._weight += sum(piece.weight for piece in pieces)
        self._size += sum(piece.size for piece in pieces)

    def take_due_chunk(self, now: float) -> list[T]:
        """Return the next chunk that is due at ``now`` (``time.monotonic``), or an empty list."""
        return self.take_chunk(now) if self._is_full or now >= self._deadline else []

    def seconds_until_due(self, now: float) -> float | None:
        """Return the seconds until a chunk is due without further pieces; None if never."""
        if self._is_full:
            return 0.0
        return None if self._deadline == math.inf else max(0.0, self._deadline - now)

    @property
    def missing_piece_count(self) -> int:
        """Pieces of weight 1 that complete the next chunk; 1 if no deadline limits the wait."""
        if self._deadline == math.inf:
            return 1
        return max(1, math.ceil(self._target - self._weight))

    def take_chunk(self, now: float) -> list[T]:
        """Return the next chunk, full or not, or an empty list; for a stream's end."""
        return self._pop_chunk(self._weight_limit(now))

    def _weight_limit(self, now: float) -> float:
        """Return the next chunk's maximum weight; it is ``largest`` if a piece waited too long."""
        return self._policy.largest if now >= self._deadline else self._target

    @property
    def _is_full(self) -> bool:
        return self._weight >= self._target or self._size > PIECES_LIMIT_BYTES

    @property
    def _deadline(self) -> float:
        """Time at which the oldest waiting piece will have waited for ``max_delay``."""
        if not self._waiting or not self._policy.max_delay:
            return math.inf
        return self._waiting[0].produced_at + self._policy.max_delay

    def _pop_chunk(self, limit: float) -> list[T]:
        """Remove and return pieces up to a weight and the size limit; at least the first one."""
        chunk: list[T] = []
        weight = size = 0
        fits = self._weight <= limit and self._size <= PIECES_LIMIT_BYTES
        # A piece without weight does not go into a chunk that is full without it.
        if fits and self._waiting and self._waiting[-1].weight > 0:
            chunk = [piece.value for piece in self._waiting]
            weight, size = self._weight, self._size
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
        self._size -= size
        if self._policy.grows and chunk and self._target < self._policy.largest:
            self._target = min(self._target * self._policy.growth, self._policy.largest)
        return chunk
