"""Chunks: their sizes, and when they go out."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.chunking import (
    ENVELOPE_BYTES,
    ROOM_BYTES,
    YIELD_LIMIT_BYTES,
    Chunker,
    ChunkPolicy,
    Piece,
)


def chunker(
    largest: int = 50, smallest: float = 1, growth: float = 3, delay: float = 0
) -> Chunker[str]:
    return Chunker(ChunkPolicy(largest, smallest, growth, delay))


def pieces(count: int, *, weight: int = 1, size: int = 3, born: float = 0) -> list[Piece[str]]:
    return [Piece("x", weight, size, born) for _ in range(count)]


def sizes(chunks: Chunker[str], count: int) -> list[int]:
    """Return how many pieces each chunk has, if they arrive one by one without delay."""
    taken = []
    for piece in pieces(count):
        chunks.add([piece])
        taken.append(chunks.take(now=0))
    while rest := chunks.flush(now=0):
        taken.append(rest)
    return [len(chunk) for chunk in taken if chunk]


GROWN = [1, 2, 3, 4, 6, 8, 12, 18, 26, 39, 50, 50, 1]


@pytest.mark.parametrize(
    ("chunks", "count", "expected"),
    [
        pytest.param(chunker(), 150, [1, 3, 9, 27, 50, 50, 10], id="by-default"),
        pytest.param(chunker(growth=1.5), 220, GROWN, id="fractions-grow-and-are-rounded-up"),
        pytest.param(chunker(smallest=5, growth=2), 100, [5, 10, 20, 40, 25], id="smallest-first"),
        pytest.param(chunker(4, growth=2), 15, [1, 2, 4, 4, 4], id="up-to-the-largest"),
        pytest.param(chunker(10**400, growth=1e308), 3, [1, 2], id="beyond-any-float"),
        *(
            pytest.param(chunker(5, smallest, growth), 12, [5, 5, 2], id="constant")
            for smallest, growth in [(1, 1), (1, 0), (1, 0.5), (0.5, 3), (0, 3), (5, 3), (7, 3)]
        ),
    ],
)
def test_chunks_grow_by_their_factor_or_have_the_largest_size(
    chunks: Chunker[str], count: int, expected: list[int]
) -> None:
    assert sizes(chunks, count) == expected


def test_the_sizes_are_the_same_for_pieces_that_come_in_a_heap() -> None:
    chunks = chunker()
    chunks.add(pieces(150))
    taken = [len(chunk) for chunk in iter(lambda: chunks.take(now=0), [])]
    assert taken == [1, 3, 9, 27, 50, 50]
    assert len(chunks.flush(now=0)) == 10


# The longest delay:


def test_without_a_delay_a_chunk_waits_for_its_size() -> None:
    chunks = chunker(smallest=2)
    chunks.add(pieces(1))
    assert chunks.take(now=1e12) == []
    assert chunks.wait(now=1e12) is None
    chunks.add(pieces(1))
    assert chunks.wait(now=0) == 0
    assert chunks.take(now=1e12) == ["x", "x"]


def test_all_waiting_pieces_go_out_when_the_oldest_is_overdue() -> None:
    chunks = chunker(smallest=10, delay=0.1)
    chunks.add(pieces(2, born=5.0) + pieces(1, born=5.09))
    assert chunks.take(now=5.0999) == []
    assert chunks.take(now=5.1) == ["x"] * 3


def test_growth_goes_on_while_chunks_are_overdue() -> None:
    chunks = chunker(delay=0.1)
    for _ in range(2):  # the chunks of one and of three pieces, both early
        chunks.add(pieces(1))
        assert len(chunks.take(now=1)) == 1
    chunks.add(pieces(8, born=2))
    assert chunks.take(now=2) == []
    chunks.add(pieces(1, born=2))
    assert len(chunks.take(now=2)) == 9


def test_a_look_without_a_due_chunk_does_not_grow_the_chunks() -> None:
    chunks = chunker(smallest=2, delay=0.1)
    assert chunks.take(now=99) == []
    chunks.add(pieces(1, born=100))
    assert chunks.take(now=100) == []
    chunks.add(pieces(1, born=100))
    assert len(chunks.take(now=100)) == 2


def test_wait_is_the_time_until_the_oldest_piece_is_overdue() -> None:
    chunks = chunker(smallest=9, delay=0.5)
    assert chunks.wait(now=5) is None
    chunks.add(pieces(1, born=10) + pieces(1, born=11))
    assert chunks.wait(now=10.25) == 0.25
    assert chunks.wait(now=12) == 0


def test_as_many_pieces_are_missing_as_the_chunk_has_room_for() -> None:
    bound, free = chunker(smallest=3.5, delay=0.1), chunker(smallest=9)
    assert bound.missing == 1  # the first starts the wait
    bound.add(pieces(1))
    free.add(pieces(1))
    assert (bound.missing, free.missing) == (3, 1)
    bound.add(pieces(1, weight=9))
    assert bound.missing == 1


# Bytes and weights:


def test_a_chunk_is_full_before_it_exceeds_what_one_yield_may_have() -> None:
    chunks = chunker(smallest=10, growth=1)
    chunks.add(pieces(3, size=ROOM_BYTES // 2))
    assert [len(chunks.take(now=0)) for _ in range(2)] == [2, 0]
    assert len(chunks.flush(now=0)) == 1


def test_a_yield_leaves_room_for_what_is_wrapped_around_its_pieces() -> None:
    assert ROOM_BYTES + ENVELOPE_BYTES == YIELD_LIMIT_BYTES == 1_000_000


HUGE = pieces(1, size=ROOM_BYTES * 2)


@pytest.mark.parametrize(
    ("waiting", "lengths"),
    [
        pytest.param(pieces(2, weight=2), [1, 1, 0], id="too-heavy-together"),
        pytest.param(HUGE + pieces(1, weight=9) + pieces(1), [1, 1, 1, 0], id="too-large-alone"),
        pytest.param(pieces(1, weight=0), [1, 0], id="without-weight"),
    ],
)
def test_at_the_end_every_piece_goes_out(waiting: list[Piece[str]], lengths: list[int]) -> None:
    chunks = chunker(largest=3, growth=1)
    chunks.add(waiting)
    assert [len(chunks.flush(now=0)) for _ in lengths] == lengths


# Any stream, on any link, where every POST takes some time:


@dataclass(frozen=True)
class Post:
    """One chunk: when it was sent, its pieces, and how many others had arrived."""

    at: float
    pieces: list[Piece[int]]
    left: int

    @property
    def oldest_s(self) -> float:
        """How long its oldest piece had waited."""
        return self.at - self.pieces[0].born


def posts_of(policy: ChunkPolicy, stream: list[Piece[int]], post_s: float) -> list[Post]:
    """Simulate a worker with one POST at a time, on a clock of its own."""
    chunks: Chunker[int] = Chunker(policy)
    posts: list[Post] = []
    now, arrived, sent = 0.0, 0, 0
    while sent < len(stream):
        come = [piece for piece in stream[arrived:] if piece.born <= now]
        chunks.add(come)
        arrived += len(come)
        ended = arrived == len(stream)
        if chunk := chunks.flush(now) if ended else chunks.take(now):
            sent += len(chunk)
            posts.append(Post(now, [stream[number] for number in chunk], arrived - sent))
            now += post_s
        else:
            wait = chunks.wait(now)
            due = math.inf if wait is None else max(now + wait, math.nextafter(now, math.inf))
            now = min(due, stream[arrived].born if not ended else math.inf)
    return posts


def streamed(rows: list[tuple[float, int, int]]) -> list[Piece[int]]:
    """Return pieces by the seconds before each, their weights and their sizes."""
    born = 0.0
    stream = []
    for number, (pause, weight, size) in enumerate(rows):
        born += pause
        stream.append(Piece(number, weight, size, born))
    return stream


def tokens(paces: list[float]) -> list[Piece[int]]:
    return streamed([(pace, 1, 3) for pace in paces])


policies = st.builds(
    ChunkPolicy,
    largest=st.integers(1, 60),
    smallest=st.sampled_from([0, 0.5, 1, 1.5, 4]),
    growth=st.sampled_from([0, 1, 1.1, 1.5, 3]),
    max_delay=st.sampled_from([0.0, 0.02, 0.1]),
)
delayed = policies.filter(lambda policy: policy.max_delay > 0)
pauses = st.sampled_from([0.0, 0.001, 0.005, 0.05, 0.3])
large = st.sampled_from([0, 3, 40, ROOM_BYTES // 3, ROOM_BYTES, ROOM_BYTES + 1])
streams = st.lists(st.tuples(pauses, st.integers(0, 4), large), max_size=60).map(streamed)
even = st.lists(pauses, max_size=150).map(tokens)
links = st.sampled_from([0.0, 0.01, 0.05, 0.1])


@given(policies, streams, links)
def test_every_piece_goes_out_once_in_order_and_no_chunk_is_too_heavy_or_too_large(
    policy: ChunkPolicy, stream: list[Piece[int]], post_s: float
) -> None:
    posts = posts_of(policy, stream, post_s)
    assert [piece for post in posts for piece in post.pieces] == stream
    for post in posts:
        if len(post.pieces) > 1:
            assert sum(piece.weight for piece in post.pieces) <= policy.largest
            assert sum(piece.size for piece in post.pieces) <= ROOM_BYTES


@given(delayed, even, links)
def test_a_token_waits_for_the_bound_or_for_the_post_before_and_then_all_goes(
    policy: ChunkPolicy, stream: list[Piece[int]], post_s: float
) -> None:
    posts = posts_of(policy, stream, post_s)
    free = [0.0, *(post.at + post_s for post in posts)]
    for post, free_at in zip(posts, free, strict=False):
        if post.oldest_s > policy.max_delay + 1e-9:
            assert math.isclose(post.at, free_at)
            assert post.left == 0 or len(post.pieces) == policy.largest


@given(delayed, even, links)
def test_posts_are_no_more_than_the_sizes_and_the_bound_ask_for(
    policy: ChunkPolicy, stream: list[Piece[int]], post_s: float
) -> None:
    posts = posts_of(policy, stream, post_s)
    constant = ChunkPolicy(policy.largest, policy.smallest, policy.growth, 0)
    in_time = posts_of(constant, tokens([0.0] * len(stream)), 0)
    # Two that were sent because of the delay are at least that delay apart.
    last = stream[-1].born if stream else 0
    late = math.floor((last + post_s * len(posts)) / policy.max_delay) + 1
    assert len(posts) <= len(in_time) + late


@given(
    st.integers(1, 400), st.sampled_from([0.005, 0.02, 0.05]), st.sampled_from([0.01, 0.05, 0.1])
)
def test_a_slow_link_adds_up_to_no_more_than_the_posts_at_the_end(
    count: int, pace_s: float, post_s: float
) -> None:
    default = ChunkPolicy(largest=50, smallest=1, growth=3, max_delay=0.1)
    posts = posts_of(default, tokens([0.0] + [pace_s] * (count - 1)), post_s)
    engine_s = pace_s * (count - 1)
    # The POST that is running at the end, and the rest; very short streams have one size more.
    most = 2 if engine_s >= 2 * post_s else 3
    assert posts[-1].at + post_s <= engine_s + most * post_s + 1e-9
