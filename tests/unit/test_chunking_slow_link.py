"""Chunks of a stream on a slow link, where every POST takes long."""

import math
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.chunking import Chunker, ChunkPolicy, Piece

Paces = list[float]  # seconds before each token


@dataclass(frozen=True)
class Post:
    """One chunk: when it was sent, how long its oldest piece had waited, what was left."""

    at: float
    tokens: list[int]
    oldest_s: float
    left: int


def posts_of(policy: ChunkPolicy, paces: Paces, post_s: float) -> list[Post]:
    """Simulate a worker with one POST at a time, on a clock of its own."""
    arrivals = []
    born = 0.0
    for number, pace in enumerate(paces):
        born += pace
        arrivals.append(Piece(number, weight=1, size=3, born=born))
    chunker: Chunker[int] = Chunker(policy)
    posts: list[Post] = []
    now, arrived, sent = 0.0, 0, 0
    while sent < len(arrivals):
        come = [piece for piece in arrivals[arrived:] if piece.born <= now]
        chunker.add(come)
        arrived += len(come)
        ended = arrived == len(arrivals)
        if chunk := chunker.flush(now) if ended else chunker.take(now):
            oldest = now - arrivals[chunk[0]].born
            sent += len(chunk)
            posts.append(Post(now, chunk, oldest, arrived - sent))
            now += post_s
        else:
            wait = chunker.wait(now)
            due = math.inf if wait is None else max(now + wait, math.nextafter(now, math.inf))
            now = min(due, arrivals[arrived].born if not ended else math.inf)
    return posts


def count_of(policy: ChunkPolicy, tokens: int) -> int:
    """Return how many chunks a stream of tokens has if none is late."""
    return len(
        posts_of(ChunkPolicy(policy.largest, policy.smallest, policy.growth, 0), [0.0] * tokens, 0)
    )


policies = st.builds(
    ChunkPolicy,
    largest=st.integers(1, 60),
    smallest=st.sampled_from([1, 1.5, 4]),
    growth=st.sampled_from([1, 1.5, 3]),
    max_delay=st.sampled_from([0.02, 0.1]),
)
streams = st.lists(st.sampled_from([0.0, 0.001, 0.005, 0.05, 0.3]), max_size=150)
links = st.sampled_from([0.0, 0.01, 0.05, 0.1])
unbounded = settings(deadline=None, database=None)


@given(policies, streams, links)
@unbounded
def test_every_token_goes_out_once_and_in_order(
    policy: ChunkPolicy, paces: Paces, post_s: float
) -> None:
    posts = posts_of(policy, paces, post_s)
    assert [token for post in posts for token in post.tokens] == list(range(len(paces)))
    assert all(len(post.tokens) <= policy.largest for post in posts)


@given(policies, streams, links)
@unbounded
def test_a_token_waits_for_the_bound_or_for_the_post_before_and_then_all_goes(
    policy: ChunkPolicy, paces: Paces, post_s: float
) -> None:
    posts = posts_of(policy, paces, post_s)
    free = [0.0, *(post.at + post_s for post in posts)]
    for post, free_at in zip(posts, free, strict=False):
        if post.oldest_s > policy.max_delay + 1e-9:
            assert math.isclose(post.at, free_at)
            assert post.left == 0 or len(post.tokens) == policy.largest


@given(policies, streams, links)
@unbounded
def test_posts_are_no_more_than_the_sizes_and_the_bound_ask_for(
    policy: ChunkPolicy, paces: Paces, post_s: float
) -> None:
    posts = posts_of(policy, paces, post_s)
    # Two that were sent because of the delay are at least that delay apart.
    late = math.floor((sum(paces) + post_s * len(posts)) / policy.max_delay) + 1
    assert len(posts) <= count_of(policy, len(paces)) + late


@given(
    st.integers(1, 400), st.sampled_from([0.005, 0.02, 0.05]), st.sampled_from([0.01, 0.05, 0.1])
)
@unbounded
def test_a_slow_link_adds_up_to_no_more_than_the_posts_at_the_end(
    tokens: int, pace_s: float, post_s: float
) -> None:
    default = ChunkPolicy(largest=50, smallest=1, growth=3, max_delay=0.1)
    posts = posts_of(default, [0.0] + [pace_s] * (tokens - 1), post_s)
    engine_s = pace_s * (tokens - 1)
    # The POST that is running at the end, and the rest; very short streams have one size more.
    most = 2 if engine_s >= 2 * post_s else 3
    assert posts[-1].at + post_s <= engine_s + most * post_s + 1e-9
