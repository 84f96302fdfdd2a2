"""Sizes of chunks, and their limits. ``engine/run/requests/test_due_outputs.py`` has the times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.streams.requests import chunk_policies

from worker.chunking import (
    PIECES_LIMIT_BYTES,
    Chunker,
    ChunkPolicy,
    Piece,
    Schedule,
)


def chunker(
    largest: int = 50, smallest: float = 1, growth: float = 3, delay: float = 0
) -> Chunker[str]:
    return Chunker(ChunkPolicy(largest, smallest, growth, delay))


def pieces(count: int, *, weight: int = 1, size: int = 3) -> list[Piece[str]]:
    return [Piece("x", weight, size) for _ in range(count)]


def chunk_sizes(chunks: Chunker[str], count: int) -> list[int]:
    """Return the number of pieces in each chunk if pieces arrive one by one."""
    sent = []
    for piece in pieces(count):
        chunks.add([piece])
        sent.append(chunks.take_due_chunk())
    while rest := chunks.take_chunk():
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
    sizes = [len(chunk) for chunk in iter(chunks.take_due_chunk, [])]
    assert sizes == [1, 3, 9, 27, 50, 50]
    assert len(chunks.take_chunk()) == 10


def test_without_a_maximum_delay_a_chunk_waits_until_it_is_full() -> None:
    chunks = chunker(smallest=2)
    for is_due, chunk in [(False, []), (True, ["x", "x"])]:
        chunks.add(pieces(1))
        assert chunks.is_due == is_due
        assert chunks.take_due_chunk() == chunk


def test_with_a_maximum_delay_all_pieces_that_have_arrived_are_due() -> None:
    chunks = chunker(smallest=10, delay=0.1)
    chunks.add(pieces(60))
    assert [len(chunks.take_due_chunk()) for _ in range(3)] == [50, 10, 0]


@pytest.mark.parametrize("delay", [0, 0.1])
def test_a_piece_without_weight_waits_for_one_with_weight(delay: float) -> None:
    chunks = chunker(delay=delay)
    chunks.add(pieces(2, weight=0))
    assert chunks.take_due_chunk() == []
    chunks.add(pieces(1))
    assert chunks.take_due_chunk() == ["x"] * 3


# Bytes and weights:


def test_a_chunk_does_not_exceed_the_size_limit_of_a_yield() -> None:
    chunks = chunker(smallest=10, growth=1)
    chunks.add(pieces(3, size=PIECES_LIMIT_BYTES // 2))
    assert [len(chunks.take_due_chunk()) for _ in range(2)] == [2, 0]
    assert len(chunks.take_chunk()) == 1


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
    assert [len(chunks.take_chunk()) for _ in lengths] == lengths


piece_sizes = st.sampled_from(
    [0, 3, 40, PIECES_LIMIT_BYTES // 3, PIECES_LIMIT_BYTES, PIECES_LIMIT_BYTES + 1]
)


@given(
    chunk_policies, st.lists(st.tuples(st.integers(0, 4), piece_sizes, st.booleans()), max_size=60)
)
def test_every_piece_is_sent_once_in_order_and_no_chunk_exceeds_the_limits(
    policy: ChunkPolicy, arrivals: list[tuple[int, int, bool]]
) -> None:
    chunks: Chunker[int] = Chunker(policy)
    sent: list[list[int]] = []
    for number, (weight, size, is_read) in enumerate(arrivals):
        chunks.add([Piece(number, weight, size)])
        if is_read:
            sent.append(chunks.take_due_chunk())
    sent += iter(chunks.take_chunk, [])
    assert [number for chunk in sent for number in chunk] == [*range(len(arrivals))]
    for chunk in sent:
        if len(chunk) > 1:
            assert sum(arrivals[number][0] for number in chunk) <= policy.largest
            assert sum(arrivals[number][1] for number in chunk) <= PIECES_LIMIT_BYTES


class Queue:
    is_due = False

    def make_due(self) -> None:
        self.is_due = True


def test_tokens_of_a_read_output_without_an_event_count_for_the_next_one_of_its_queue() -> None:
    schedule = Schedule(ChunkPolicy(50, 50, 1, 0), merges=True)
    first, second = Queue(), Queue()
    for queue, tokens in ((first, 2), (second, 3), (first, 4)):
        schedule.note_read(queue, [tokens])
    assert [schedule.take_event_weight() for _ in range(3)] == [3, 6, 0]


def test_events_of_a_stream_without_a_queue_have_a_token_each() -> None:
    schedule = Schedule(ChunkPolicy(50, 50, 1, 0), merges=True)
    assert [schedule.take_event_weight() for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(("more", "is_due"), [(2, False), (3, True)])
async def test_outputs_are_due_before_their_chunk_would_exceed_its_largest_size(
    more: int, *, is_due: bool
) -> None:
    schedule, queue = Schedule(ChunkPolicy(5, 5, 1, 60), merges=True), Queue()
    schedule.add(queue, 3)
    schedule.make_space(more)
    assert queue.is_due is is_due
