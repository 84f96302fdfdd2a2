"""Pieces of an answer in, chunks out: one chunk a yield. Pure: no I/O, no clock of its own."""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

# The platform refuses a stream chunk above 1 MB. The reserve is for what a yield has besides its
# pieces: keys, usage, finish reasons.
YIELD_LIMIT_BYTES = 1_000_000
ENVELOPE_BYTES = 50_000
ROOM_BYTES = YIELD_LIMIT_BYTES - ENVELOPE_BYTES


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """The smallest part of an answer that is sent on its own: a token's text, an SSE event.

    ``weight`` is in tokens or events, ``size`` in bytes as JSON; ``born`` is when it was produced
    (``time.monotonic``, seconds).
    """

    value: T
    weight: int
    size: int
    born: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """How chunks grow: ``smallest x growth^k`` pieces up to ``largest``, none waiting too long.

    ``max_delay`` is in seconds; with 0, pieces wait until a chunk is full.
    """

    largest: int
    smallest: float
    growth: float
    max_delay: float

    @property
    def grows(self) -> bool:
        return self.growth > 1 and self.smallest >= 1 and self.largest > self.smallest


# Every piece is a chunk of its own.
ONE_BY_ONE = ChunkPolicy(largest=1, smallest=1, growth=1, max_delay=0)


class Chunker(Generic[T]):
    """Gathers the pieces of one stream into chunks, as its policy says."""

    def __init__(self, policy: ChunkPolicy) -> None:
        self._policy = policy
        self._target: float = policy.smallest if policy.grows else policy.largest
        self._waiting: deque[Piece[T]] = deque()
        self._weight = 0
        self._size = 0

    def add(self, pieces: list[Piece[T]]) -> None:
        """Append pieces in the stream's order. One above ``ROOM_BYTES`` gets a chunk of its own."""
        self._waiting.extend(pieces)
        self._weight += sum(piece.weight for piece in pieces)
        self._size += sum(piece.size for piece in pieces)

    def take(self, now: float) -> list[T]:
        """Return the next chunk that is due at ``now`` (``time.monotonic``), or an empty list."""
        return self._emit(self._limit(now)) if self._full or now >= self._deadline else []

    def wait(self, now: float) -> float | None:
        """Return the seconds until a chunk is due if no further piece comes; None: never."""
        if self._full:
            return 0.0
        return None if self._deadline == math.inf else max(0.0, self._deadline - now)

    @property
    def missing(self) -> int:
        """How many pieces to wait for: so many fill the chunk if they weigh 1 each.

        1 if nothing else bounds the wait, since pieces may weigh more, or be large.
        """
        if self._deadline == math.inf:
            return 1
        return max(1, math.ceil(self._target - self._weight))

    def flush(self, now: float) -> list[T]:
        """Return the next chunk after the stream has ended, or an empty list if none is left."""
        return self._emit(self._limit(now))

    def _limit(self, now: float) -> float:
        """The most that a chunk may weigh: all that waited too long behind a slow yield."""
        return self._policy.largest if now >= self._deadline else self._target

    @property
    def _full(self) -> bool:
        return self._weight >= self._target or self._size > ROOM_BYTES

    @property
    def _deadline(self) -> float:
        """When the oldest waiting piece will have waited for ``max_delay``."""
        if not self._waiting or not self._policy.max_delay:
            return math.inf
        return self._waiting[0].born + self._policy.max_delay

    def _emit(self, limit: float) -> list[T]:
        """Take pieces until they weigh ``limit``: the first one always, however large."""
        chunk: list[T] = []
        weight = size = 0
        while self._waiting and weight < limit:
            piece = self._waiting[0]
            over = weight + piece.weight > self._policy.largest or size + piece.size > ROOM_BYTES
            if chunk and over:
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
