"""Chunks: their sizes, and when they go out."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.chunking import (
    ENVELOPE_BYTES,
    ROOM_BYTES,
    YIELD_LIMIT_BYTES,
    Chunker,
    ChunkPolicy,
    Piece,
)


def policy(
    largest: int = 50, smallest: float = 1, growth: float = 3, delay: float = 0
) -> ChunkPolicy:
    return ChunkPolicy(largest=largest, smallest=smallest, growth=growth, max_delay=delay)


def pieces(count: int, *, weight: int = 1, size: int = 3, born: float = 0) -> list[Piece[str]]:
    return [Piece("x", weight, size, born) for _ in range(count)]


def sizes(chunker: Chunker[str], count: int) -> list[int]:
    """Return how many pieces each chunk has, if they arrive one by one without delay."""
    chunks = []
    for piece in pieces(count):
        chunker.add([piece])
        chunks += [chunker.take(now=0)]
    while rest := chunker.flush(now=0):
        chunks += [rest]
    return [len(chunk) for chunk in chunks if chunk]


def test_chunks_grow_1_3_9_27_50_50_by_default() -> None:
    assert sizes(Chunker(policy()), 150) == [1, 3, 9, 27, 50, 50, 10]


def test_the_sequence_is_the_same_for_pieces_that_come_in_a_heap() -> None:
    chunker: Chunker[str] = Chunker(policy())
    chunker.add(pieces(150))
    taken = [len(chunk) for chunk in iter(lambda: chunker.take(now=0), [])]
    assert taken == [1, 3, 9, 27, 50, 50]
    assert len(chunker.flush(now=0)) == 10


def test_fractions_grow_as_floats_and_are_rounded_up() -> None:
    grown = sizes(Chunker(policy(growth=1.5)), 220)
    assert grown == [1, 2, 3, 4, 6, 8, 12, 18, 26, 39, 50, 50, 1]


def test_the_first_chunk_has_the_smallest_size() -> None:
    assert sizes(Chunker(policy(smallest=5, growth=2)), 100) == [5, 10, 20, 40, 25]


def test_growth_ends_at_exactly_the_largest_size() -> None:
    assert sizes(Chunker(policy(largest=4, growth=2)), 15) == [1, 2, 4, 4, 4]


@pytest.mark.parametrize(
    "constant",
    [
        policy(largest=5, growth=1),
        policy(largest=5, growth=0),
        policy(largest=5, growth=0.5),
        policy(largest=5, smallest=0.5),
        policy(largest=5, smallest=0),
        policy(largest=5, smallest=5),
        policy(largest=5, smallest=7),
    ],
)
def test_chunks_that_can_not_grow_all_have_the_largest_size(constant: ChunkPolicy) -> None:
    assert sizes(Chunker(constant), 12) == [5, 5, 2]


@pytest.mark.parametrize("smallest", [0.5, 5, 7])
def test_a_chunk_that_can_not_grow_is_due_at_the_largest_size(smallest: float) -> None:
    chunker: Chunker[str] = Chunker(policy(largest=5, smallest=smallest))
    chunker.add(pieces(4))
    assert chunker.take(now=0) == []
    chunker.add(pieces(1))
    assert len(chunker.take(now=0)) == 5


def test_a_chunk_waits_for_its_size() -> None:
    chunker: Chunker[str] = Chunker(policy(smallest=2))
    chunker.add(pieces(1))
    assert chunker.take(now=1e9) == []
    chunker.add(pieces(1))
    assert chunker.take(now=1e9) == ["x", "x"]


# The longest delay:


def test_all_waiting_pieces_go_out_when_the_oldest_is_overdue() -> None:
    chunker: Chunker[str] = Chunker(policy(smallest=10, delay=0.1))
    chunker.add(pieces(2, born=5.0) + pieces(1, born=5.09))
    assert chunker.take(now=5.0999) == []
    assert chunker.take(now=5.1) == ["x"] * 3


def test_an_overdue_chunk_holds_no_more_than_the_largest_size() -> None:
    chunker: Chunker[str] = Chunker(policy(largest=4, delay=0.1))
    chunker.add(pieces(6))
    assert [len(chunker.take(now=1)) for _ in range(3)] == [4, 2, 0]


def test_growth_goes_on_while_chunks_are_overdue() -> None:
    chunker: Chunker[str] = Chunker(policy(delay=0.1))
    for _ in range(2):  # the chunks of one and of three pieces, both early
        chunker.add(pieces(1))
        assert len(chunker.take(now=1)) == 1
    chunker.add(pieces(8, born=2))
    assert chunker.take(now=2) == []
    chunker.add(pieces(1, born=2))
    assert len(chunker.take(now=2)) == 9


def test_a_look_without_a_due_chunk_does_not_grow_the_chunks() -> None:
    chunker: Chunker[str] = Chunker(policy(smallest=2, delay=0.1))
    assert chunker.take(now=99) == []
    chunker.add(pieces(1, born=100))
    assert chunker.take(now=100) == []
    chunker.add(pieces(1, born=100))
    assert len(chunker.take(now=100)) == 2


def test_a_bound_of_zero_is_off() -> None:
    chunker: Chunker[str] = Chunker(policy(smallest=2, delay=0))
    chunker.add(pieces(1))
    assert chunker.take(now=1e12) == []
    assert chunker.wait(now=1e12) is None


def test_sizes_beyond_any_float_are_no_defect() -> None:
    chunker: Chunker[str] = Chunker(policy(largest=10**400, growth=1e308, delay=0.1))
    for _ in range(5):
        chunker.add(pieces(1))
        assert chunker.take(now=1) == ["x"]


# How long to wait:


def test_without_pieces_the_wait_has_no_limit() -> None:
    assert Chunker(policy(delay=0.1)).wait(now=5) is None


def test_wait_is_the_time_until_the_oldest_piece_is_overdue() -> None:
    chunker: Chunker[str] = Chunker(policy(smallest=9, delay=0.5))
    chunker.add(pieces(1, born=10) + pieces(1, born=11))
    assert chunker.wait(now=10.25) == 0.25
    assert chunker.wait(now=12) == 0


def test_as_many_pieces_are_missing_as_the_chunk_has_room_for() -> None:
    bound, free = Chunker[str](policy(smallest=3.5, delay=0.1)), Chunker[str](policy(smallest=9))
    assert bound.missing == 1  # the first starts the wait
    bound.add(pieces(1))
    free.add(pieces(1))
    assert (bound.missing, free.missing) == (3, 1)
    bound.add(pieces(1, weight=9))
    assert bound.missing == 1


def test_a_full_chunk_is_not_waited_for() -> None:
    chunker: Chunker[str] = Chunker(policy(smallest=2))
    chunker.add(pieces(2))
    assert chunker.wait(now=0) == 0
    chunker.take(now=0)
    assert chunker.wait(now=0) is None


# Bytes:


def test_a_chunk_is_full_before_it_exceeds_what_one_yield_may_hold() -> None:
    chunker: Chunker[str] = Chunker(policy(smallest=10, growth=1))
    chunker.add(pieces(3, size=ROOM_BYTES // 2))
    assert [len(chunker.take(now=0)) for _ in range(2)] == [2, 0]
    assert len(chunker.flush(now=0)) == 1


def test_a_yield_leaves_room_for_what_is_wrapped_around_its_pieces() -> None:
    assert ROOM_BYTES + ENVELOPE_BYTES == YIELD_LIMIT_BYTES == 1_000_000


def test_a_single_piece_goes_out_however_large() -> None:
    chunker: Chunker[str] = Chunker(policy(largest=2, growth=1))
    chunker.add(pieces(1, size=ROOM_BYTES * 2) + pieces(1, weight=9) + pieces(1))
    assert [len(chunker.flush(now=0)) for _ in range(4)] == [1, 1, 1, 0]


def test_a_heavy_piece_does_not_overfill_a_chunk() -> None:
    chunker: Chunker[str] = Chunker(policy(largest=3, growth=1))
    chunker.add(pieces(2, weight=2))
    assert [len(chunker.take(now=0)) for _ in range(2)] == [1, 0]


def test_pieces_without_weight_are_not_lost_at_the_end() -> None:
    chunker: Chunker[str] = Chunker(policy())
    chunker.add(pieces(1))
    assert chunker.take(now=0) == ["x"]
    chunker.add([Piece("end", weight=0, size=3, born=0)])
    assert chunker.take(now=0) == []
    assert chunker.flush(now=0) == ["end"]


# Any pieces:

Arrivals = list[tuple[str, int, int, float]]

arrivals = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "é", "😀", "\n\n"]),
        st.integers(0, 4),  # weight
        st.sampled_from([0, 3, 40, ROOM_BYTES // 3, ROOM_BYTES, ROOM_BYTES + 1]),
        st.sampled_from([0.0, 0.0, 0.01, 0.2]),  # seconds since the one before
    ),
    max_size=60,
)
policies = st.builds(
    ChunkPolicy,
    largest=st.integers(1, 60),
    smallest=st.sampled_from([0, 0.5, 1, 1.5, 4]),
    growth=st.sampled_from([0, 1, 1.1, 1.5, 3]),
    max_delay=st.sampled_from([0.0, 0.05, 0.1]),
)
unbounded = settings(deadline=None, database=None)


def played(chunk_policy: ChunkPolicy, stream: Arrivals) -> list[tuple[float, list[Piece[str]]]]:
    """Return every chunk with its time, if the reader looks whenever wait() says."""
    chunker: Chunker[Piece[str]] = Chunker(chunk_policy)
    chunks: list[tuple[float, list[Piece[str]]]] = []
    now = 0.0

    def drain(until: float) -> None:
        nonlocal now
        while (wait := chunker.wait(now)) is not None and now + wait <= until:
            now += wait
            if chunk := chunker.take(now):
                chunks.append((now, chunk))
            else:
                now = math.nextafter(now, math.inf)  # a clock always advances

    for text, weight, size, gap in stream:
        drain(until=now + gap)
        now += gap
        piece = Piece(text, weight, size, born=now)
        chunker.add([Piece(piece, weight, size, born=now)])
        drain(until=now)
    while rest := chunker.flush(now=0):
        chunks.append((now, rest))
    return chunks


@given(policies, arrivals)
@unbounded
def test_the_pieces_that_go_out_are_those_that_came_in(
    chunk_policy: ChunkPolicy, stream: Arrivals
) -> None:
    out = [piece.value for _, chunk in played(chunk_policy, stream) for piece in chunk]
    assert out == [text for text, *_ in stream]


@given(policies, arrivals)
@unbounded
def test_no_chunk_of_several_pieces_is_too_heavy_or_too_large(
    chunk_policy: ChunkPolicy, stream: Arrivals
) -> None:
    for _, chunk in played(chunk_policy, stream):
        if len(chunk) > 1:
            assert sum(piece.weight for piece in chunk) <= chunk_policy.largest
            assert sum(piece.size for piece in chunk) <= ROOM_BYTES


@given(policies.filter(lambda policy: policy.max_delay > 0), arrivals)
@unbounded
def test_no_piece_waits_longer_than_the_bound(chunk_policy: ChunkPolicy, stream: Arrivals) -> None:
    for out, chunk in played(chunk_policy, stream):
        assert out - chunk[0].born <= chunk_policy.max_delay + 1e-9


@given(policies.map(lambda p: policy(p.largest, p.smallest, p.growth)), st.integers(0, 300))
@unbounded
def test_without_a_bound_the_chunks_are_those_of_the_formula(
    chunk_policy: ChunkPolicy, count: int
) -> None:
    expected, target, left = [], chunk_policy.smallest, count
    while left:
        size = math.ceil(target) if chunk_policy.grows else chunk_policy.largest
        expected.append(min(size, chunk_policy.largest, left))
        left -= expected[-1]
        target = min(target * chunk_policy.growth, chunk_policy.largest)
    assert sizes(Chunker(chunk_policy), count) == expected
