"""Sizes of chunks, and the times at which they are sent."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.chunking import (
    ENVELOPE_BYTES,
    PIECES_LIMIT_BYTES,
    YIELD_LIMIT_BYTES,
    Chunker,
    ChunkPolicy,
    Piece,
)


def chunker(
    largest: int = 50, smallest: float = 1, growth: float = 3, delay: float = 0
) -> Chunker[str]:
    return Chunker(ChunkPolicy(largest, smallest, growth, delay))


def pieces(
    count: int, *, weight: int = 1, size: int = 3, produced_at: float = 0
) -> list[Piece[str]]:
    return [Piece("x", weight, size, produced_at) for _ in range(count)]


def chunk_sizes(chunks: Chunker[str], count: int) -> list[int]:
    """Return the number of pieces in each chunk if pieces arrive one by one without delay."""
    sent = []
    for piece in pieces(count):
        chunks.add([piece])
        sent.append(chunks.take_due_chunk(now=0))
    while rest := chunks.take_chunk(now=0):
        sent.append(rest)
    return [len(chunk) for chunk in sent if chunk]


ROUNDED_SIZES = [1, 2, 3, 4, 6, 8, 12, 18, 26, 39, 50, 50, 1]


@pytest.mark.parametrize(
    ("chunks", "count", "expected"),
    [
        pytest.param(chunker(), 150, [1, 3, 9, 27, 50, 50, 10], id="by-default"),
        pytest.param(
            chunker(growth=1.5), 220, ROUNDED_SIZES, id="fractions-grow-and-are-rounded-up"
        ),
        pytest.param(chunker(smallest=5, growth=2), 100, [5, 10, 20, 40, 25], id="smallest-first"),
        pytest.param(chunker(4, growth=2), 15, [1, 2, 4, 4, 4], id="up-to-the-largest"),
        pytest.param(chunker(10**400, growth=1e308), 3, [1, 2], id="beyond-any-float"),
        *(
            pytest.param(chunker(5, smallest, growth), 12, [5, 5, 2], id="constant")
            for smallest, growth in [(1, 1), (1, 0), (1, 0.5), (0.5, 3), (0, 3), (5, 3), (7, 3)]
        ),
    ],
)
def test_chunks_grow_by_the_factor_or_all_have_the_largest_size(
    chunks: Chunker[str], count: int, expected: list[int]
) -> None:
    assert chunk_sizes(chunks, count) == expected


def test_the_sizes_are_the_same_for_pieces_that_arrive_together() -> None:
    chunks = chunker()
    chunks.add(pieces(150))
    sizes = [len(chunk) for chunk in iter(lambda: chunks.take_due_chunk(now=0), [])]
    assert sizes == [1, 3, 9, 27, 50, 50]
    assert len(chunks.take_chunk(now=0)) == 10


# The maximum delay:


def test_without_a_maximum_delay_a_chunk_waits_until_it_is_full() -> None:
    chunks = chunker(smallest=2)
    chunks.add(pieces(1))
    assert chunks.take_due_chunk(now=1e12) == []
    assert chunks.seconds_until_due(now=1e12) is None
    chunks.add(pieces(1))
    assert chunks.seconds_until_due(now=0) == 0
    assert chunks.take_due_chunk(now=1e12) == ["x", "x"]


def test_all_waiting_pieces_are_sent_when_the_oldest_is_overdue() -> None:
    chunks = chunker(smallest=10, delay=0.1)
    chunks.add(pieces(2, produced_at=5.0) + pieces(1, produced_at=5.09))
    assert chunks.take_due_chunk(now=5.0999) == []
    assert chunks.take_due_chunk(now=5.1) == ["x"] * 3


def test_chunks_also_grow_when_they_are_sent_because_of_the_delay() -> None:
    chunks = chunker(delay=0.1)
    for _ in range(2):  # a chunk of one and a chunk of three pieces, both sent early
        chunks.add(pieces(1))
        assert len(chunks.take_due_chunk(now=1)) == 1
    chunks.add(pieces(8, produced_at=2))
    assert chunks.take_due_chunk(now=2) == []
    chunks.add(pieces(1, produced_at=2))
    assert len(chunks.take_due_chunk(now=2)) == 9


def test_chunks_do_not_grow_while_no_chunk_is_due() -> None:
    chunks = chunker(smallest=2, delay=0.1)
    assert chunks.take_due_chunk(now=99) == []
    chunks.add(pieces(1, produced_at=100))
    assert chunks.take_due_chunk(now=100) == []
    chunks.add(pieces(1, produced_at=100))
    assert len(chunks.take_due_chunk(now=100)) == 2


def test_a_chunk_is_due_when_its_oldest_piece_is_overdue() -> None:
    chunks = chunker(smallest=9, delay=0.5)
    assert chunks.seconds_until_due(now=5) is None
    chunks.add(pieces(1, produced_at=10) + pieces(1, produced_at=11))
    assert chunks.seconds_until_due(now=10.25) == 0.25
    assert chunks.seconds_until_due(now=12) == 0


def test_missing_pieces_are_those_that_still_fit_into_the_chunk() -> None:
    with_delay, without_delay = chunker(smallest=3.5, delay=0.1), chunker(smallest=9)
    assert with_delay.missing_piece_count == 1  # the first piece starts the delay
    with_delay.add(pieces(1))
    without_delay.add(pieces(1))
    assert (with_delay.missing_piece_count, without_delay.missing_piece_count) == (3, 1)
    with_delay.add(pieces(1, weight=9))
    assert with_delay.missing_piece_count == 1


# Bytes and weights:


def test_a_chunk_does_not_exceed_the_size_limit_of_a_yield() -> None:
    chunks = chunker(smallest=10, growth=1)
    chunks.add(pieces(3, size=PIECES_LIMIT_BYTES // 2))
    assert [len(chunks.take_due_chunk(now=0)) for _ in range(2)] == [2, 0]
    assert len(chunks.take_chunk(now=0)) == 1


def test_the_size_limit_of_a_yield_includes_its_envelope() -> None:
    assert PIECES_LIMIT_BYTES + ENVELOPE_BYTES == YIELD_LIMIT_BYTES == 1_000_000


HUGE = pieces(1, size=PIECES_LIMIT_BYTES * 2)


@pytest.mark.parametrize(
    ("waiting", "lengths"),
    [
        pytest.param(pieces(2, weight=2), [1, 1, 0], id="too-heavy-together"),
        pytest.param(HUGE + pieces(1, weight=9) + pieces(1), [1, 1, 1, 0], id="too-large-alone"),
        pytest.param(pieces(1, weight=0), [1, 0], id="without-weight"),
    ],
)
def test_flushing_sends_every_piece(waiting: list[Piece[str]], lengths: list[int]) -> None:
    chunks = chunker(largest=3, growth=1)
    chunks.add(waiting)
    assert [len(chunks.take_chunk(now=0)) for _ in lengths] == lengths


# Any stream, over any connection, where every POST takes some time:


@dataclass(frozen=True)
class Post:
    """A chunk that was sent: its time, its pieces, and the number of pieces left waiting."""

    sent_at: float
    pieces: list[Piece[int]]
    waiting_count: int

    @property
    def longest_wait_s(self) -> float:
        """Seconds that the oldest piece waited."""
        return self.sent_at - self.pieces[0].produced_at


def simulate_posts(policy: ChunkPolicy, stream: list[Piece[int]], post_s: float) -> list[Post]:
    """Simulate a worker that sends one POST at a time, on a simulated clock."""
    chunks: Chunker[int] = Chunker(policy)
    posts: list[Post] = []
    now, arrived, sent = 0.0, 0, 0
    while sent < len(stream):
        arrivals = [piece for piece in stream[arrived:] if piece.produced_at <= now]
        chunks.add(arrivals)
        arrived += len(arrivals)
        all_arrived = arrived == len(stream)
        if chunk := chunks.take_chunk(now) if all_arrived else chunks.take_due_chunk(now):
            sent += len(chunk)
            posts.append(Post(now, [stream[number] for number in chunk], arrived - sent))
            now += post_s
        else:
            wait = chunks.seconds_until_due(now)
            due = math.inf if wait is None else max(now + wait, math.nextafter(now, math.inf))
            now = min(due, stream[arrived].produced_at if not all_arrived else math.inf)
    return posts


def make_stream(rows: list[tuple[float, int, int]]) -> list[Piece[int]]:
    """Create pieces from rows of the pause before a piece in seconds, its weight and its size."""
    produced_at = 0.0
    stream = []
    for number, (pause, weight, size) in enumerate(rows):
        produced_at += pause
        stream.append(Piece(number, weight, size, produced_at))
    return stream


def tokens(paces: list[float]) -> list[Piece[int]]:
    return make_stream([(pace, 1, 3) for pace in paces])


policies = st.builds(
    ChunkPolicy,
    largest=st.integers(1, 60),
    smallest=st.sampled_from([0, 0.5, 1, 1.5, 4]),
    growth=st.sampled_from([0, 1, 1.1, 1.5, 3]),
    max_delay=st.sampled_from([0.0, 0.02, 0.1]),
)
policies_with_delay = policies.filter(lambda policy: policy.max_delay > 0)
pauses = st.sampled_from([0.0, 0.001, 0.005, 0.05, 0.3])
piece_sizes = st.sampled_from(
    [0, 3, 40, PIECES_LIMIT_BYTES // 3, PIECES_LIMIT_BYTES, PIECES_LIMIT_BYTES + 1]
)
streams = st.lists(st.tuples(pauses, st.integers(0, 4), piece_sizes), max_size=60).map(make_stream)
token_streams = st.lists(pauses, max_size=150).map(tokens)
post_durations = st.sampled_from([0.0, 0.01, 0.05, 0.1])


@given(policies, streams, post_durations)
def test_every_piece_is_sent_once_in_order_and_no_chunk_exceeds_the_limits(
    policy: ChunkPolicy, stream: list[Piece[int]], post_s: float
) -> None:
    posts = simulate_posts(policy, stream, post_s)
    assert [piece for post in posts for piece in post.pieces] == stream
    for post in posts:
        if len(post.pieces) > 1:
            assert sum(piece.weight for piece in post.pieces) <= policy.largest
            assert sum(piece.size for piece in post.pieces) <= PIECES_LIMIT_BYTES


@given(policies_with_delay, token_streams, post_durations)
def test_a_token_waits_for_the_maximum_delay_or_for_the_previous_post(
    policy: ChunkPolicy, stream: list[Piece[int]], post_s: float
) -> None:
    posts = simulate_posts(policy, stream, post_s)
    free = [0.0, *(post.sent_at + post_s for post in posts)]
    for post, free_at in zip(posts, free, strict=False):
        if post.longest_wait_s > policy.max_delay + 1e-9:
            assert math.isclose(post.sent_at, free_at)
            assert post.waiting_count == 0 or len(post.pieces) == policy.largest


@given(policies_with_delay, token_streams, post_durations)
def test_no_more_posts_are_sent_than_sizes_and_maximum_delay_require(
    policy: ChunkPolicy, stream: list[Piece[int]], post_s: float
) -> None:
    posts = simulate_posts(policy, stream, post_s)
    constant = ChunkPolicy(policy.largest, policy.smallest, policy.growth, 0)
    by_size = simulate_posts(constant, tokens([0.0] * len(stream)), 0)
    # Two chunks that are sent because of the delay are at least that delay apart.
    last = stream[-1].produced_at if stream else 0
    max_by_delay = math.floor((last + post_s * len(posts)) / policy.max_delay) + 1
    assert len(posts) <= len(by_size) + max_by_delay


@given(
    st.integers(1, 400), st.sampled_from([0.005, 0.02, 0.05]), st.sampled_from([0.01, 0.05, 0.1])
)
def test_slow_posts_delay_the_end_of_a_response_by_at_most_three_posts(
    count: int, pace_s: float, post_s: float
) -> None:
    default = ChunkPolicy(largest=50, smallest=1, growth=3, max_delay=0.1)
    posts = simulate_posts(default, tokens([0.0] + [pace_s] * (count - 1)), post_s)
    engine_s = pace_s * (count - 1)
    # The POST that is running when the engine finishes, and the rest; a very short stream has one
    # more chunk size.
    max_posts = 2 if engine_s >= 2 * post_s else 3
    assert posts[-1].sent_at + post_s <= engine_s + max_posts * post_s + 1e-9
