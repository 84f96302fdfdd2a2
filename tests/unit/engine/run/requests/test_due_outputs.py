"""Times at which the outputs of a stream are read, and the events that they become.

A simulated loop, whose clock jumps to the next timer, plays an engine, the reader of its outputs,
and posts of the chunks. Only vLLM's server, the reader, is simulated.
"""

import asyncio
import math
import selectors
from argparse import Namespace
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.streams.requests import chunk_policies
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from worker.chunking import Chunker, ChunkPolicy, Piece, Schedule, current_schedule
from worker.engine.run.requests.due_outputs import (
    READERS_PER_ITERATION,
    DueOutputs,
    ReaderWaker,
    make_collector,
    separate_outputs,
)

DEFAULT = ChunkPolicy(largest=50, smallest=1, growth=3, max_delay=0.1)
EXACT = ChunkPolicy(largest=50, smallest=1, growth=3, max_delay=0)
# The text of each token of the engine's step k is the character at this code point plus k.
FIRST_CHARACTER = 0x4E00


class SimulatedSelector(selectors.DefaultSelector):
    """Waits for nothing: it adds the timeout to the loop's time."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing will ever happen"
        self.now += timeout
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own."""

    def __init__(self) -> None:
        self.selector = SimulatedSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


def output(
    texts: Sequence[str], index: int = 0, *, finished: bool = False, candidates: int = 0
) -> RequestOutput:
    """Return one step of a request: a token for each text, with its number of log probabilities."""
    logprobs: Any = [dict.fromkeys(range(candidates)) for _ in texts] if candidates else None
    reason = "stop" if finished else None
    choice = CompletionOutput(index, "".join(texts), [1] * len(texts), None, logprobs, None, reason)
    return RequestOutput("id", None, None, None, [choice], finished=finished)


def due_outputs(schedule: Schedule, waker: ReaderWaker | None = None) -> DueOutputs:
    return DueOutputs(RequestOutputKind.DELTA, "id", schedule, waker or ReaderWaker())


def read(queue: DueOutputs) -> list[str]:
    """Return the texts of the outputs that are due, of their first choices."""
    return [result.outputs[0].text for result in iter(queue.get_nowait, None)]


@dataclass(frozen=True)
class Event:
    """An event that the reader makes of one choice of an output."""

    text: str
    index: int
    arrived_at: float


@dataclass
class Post:
    """A chunk that was sent: its time, its events, and the number of those left waiting."""

    sent_at: float
    events: list[Event]
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = "".join(event.text for event in self.events)


@dataclass(frozen=True)
class Step:
    """A step of the engine: its pause before, its tokens, and their choice."""

    pause: float
    tokens: int = 1
    index: int = 0


class Simulation:
    """A stream whose last step ends it."""

    def __init__(
        self, policy: ChunkPolicy, steps: Sequence[Step], *, merges: bool, post_s: float
    ) -> None:
        self._steps, self._post_s = steps, post_s
        self._schedule = Schedule(policy, merges=merges)
        self._queue = due_outputs(self._schedule)
        self._chunker: Chunker[Event] = Chunker(policy)
        self._arrivals: list[float] = []
        self._pieces: list[Piece[Event]] = []
        self._wake = asyncio.Event()
        self.posts: list[Post] = []

    async def run(self) -> None:
        producing, reading = asyncio.create_task(self._produce()), asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self._wake.set())
        # The same as ``Worker._render_stream``.
        while self._pieces or not reading.done():
            if not (self._chunker.is_due or self._pieces):
                await self._wake.wait()
            self._wake.clear()
            self._chunker.add(self._pieces)
            self._pieces.clear()
            await self._post(self._chunker.take_due_chunk())
        while chunk := self._chunker.take_chunk():
            await self._post(chunk)
        await producing

    async def _produce(self) -> None:
        for number, step in enumerate(self._steps):
            await asyncio.sleep(step.pause)
            self._arrivals.append(asyncio.get_running_loop().time())
            texts = [chr(FIRST_CHARACTER + number)] * step.tokens
            is_last = number == len(self._steps) - 1
            self._queue.put(output(texts, step.index, finished=is_last))

    async def _read(self) -> None:
        finished = False
        while not finished:
            # The same as vLLM's ``AsyncLLM.generate``.
            result = self._queue.get_nowait() or await self._queue.get()
            finished = result.finished
            for choice in result.outputs:
                arrived_at = self._arrivals[ord(choice.text[0]) - FIRST_CHARACTER]
                event = Event(choice.text, choice.index, arrived_at)
                self._pieces.append(Piece(event, self._schedule.take_event_weight(), 3))
            self._wake.set()

    async def _post(self, chunk: list[Event]) -> None:
        if chunk:
            self.posts.append(Post(asyncio.get_running_loop().time(), chunk))
            await asyncio.sleep(self._post_s)


async def play(
    policy: ChunkPolicy, steps: Sequence[Step], *, merges: bool = True, post_s: float = 0.0
) -> list[Post]:
    simulation = Simulation(policy, steps, merges=merges, post_s=post_s)
    await simulation.run()
    return simulation.posts


def simulate(
    policy: ChunkPolicy, steps: Sequence[Step], *, merges: bool = True, post_s: float = 0.0
) -> list[Post]:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(play(policy, steps, merges=merges, post_s=post_s))


def tokens(*pauses: float) -> list[Step]:
    return [Step(pause) for pause in pauses]


def sizes(posts: Sequence[Post]) -> list[int]:
    return [len(post.text) for post in posts]


both = pytest.mark.parametrize("merges", [True, False], ids=["chunk", "token"])


# The sizes and the times of chunks:


@both
def test_without_a_delay_chunks_have_exactly_their_sizes(merges: bool) -> None:
    for pause in (0.0, 0.02, 7.0):
        posts = simulate(EXACT, tokens(*[pause] * 150), merges=merges)
        assert sizes(posts) == [1, 3, 9, 27, 50, 50, 10]
        events = [len(post.events) for post in posts]
        assert events == ([1] * 7 if merges else sizes(posts))


@both
def test_a_chunk_is_sent_at_the_latest_one_delay_after_the_previous_one(merges: bool) -> None:
    posts = simulate(DEFAULT, tokens(*[0.024] * 14), merges=merges)
    assert sizes(posts) == [1, 3, 4, 4, 2]
    times = [0.024, 0.096, 0.196, 0.296, 0.336]
    assert [post.sent_at for post in posts] == pytest.approx(times)


def test_a_token_of_a_stream_slower_than_the_delay_never_waits() -> None:
    posts = simulate(DEFAULT, tokens(*[0.15] * 9))
    assert sizes(posts) == [1] * 9
    assert all(post.sent_at == post.events[0].arrived_at for post in posts)


def test_the_first_chunk_waits_for_its_size_or_the_delay() -> None:
    larger = ChunkPolicy(largest=50, smallest=4, growth=2, max_delay=0.1)
    assert [post.sent_at for post in simulate(larger, tokens(*[0.01] * 4))] == [0.04]
    first = simulate(larger, tokens(0.5, 0.06, 0.06))[0]
    assert first.sent_at == pytest.approx(0.6)
    assert len(first.text) == 2


def test_the_end_of_a_stream_is_sent_immediately() -> None:
    for policy in (DEFAULT, EXACT):
        *_, last = simulate(policy, tokens(*[0.001] * 30))
        assert last.sent_at == pytest.approx(0.03)


def test_all_events_that_are_due_at_the_end_of_a_post_go_out_together() -> None:
    assert sizes(simulate(DEFAULT, tokens(*[0.0104] * 60), post_s=0.3)) == [1, 21, 29, 9]


async def count_timers(policy: ChunkPolicy, steps: Sequence[Step]) -> int:
    loop: Any = asyncio.get_running_loop()
    call_at, times = loop.call_at, []

    def count_and_call(when: float, *args: Any, **options: Any) -> Any:
        times.append(when)
        return call_at(when, *args, **options)

    loop.call_at = count_and_call
    await play(policy, steps)
    return len(times)


def test_a_stream_sets_a_timer_for_a_chunk_and_none_for_a_token() -> None:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        assert runner.run(count_timers(DEFAULT, tokens(*[0.0] * 450))) <= 12
        assert runner.run(count_timers(EXACT, tokens(*[0.0] * 450))) == 0


# The events of a chunk:


def test_the_choices_of_a_chunk_are_an_event_each_with_their_own_weights() -> None:
    steps = [Step(0.001, index=number % 3) for number in range(40)]
    posts = simulate(EXACT, steps)
    assert sizes(posts) == [1, 3, 9, 27]
    assert [len(post.events) for post in posts] == [1, 3, 3, 3]


def test_a_step_with_several_tokens_is_one_event_and_a_chunk_keeps_its_maximum() -> None:
    steps = [Step(0.001, tokens=4) for _ in range(40)]
    posts = simulate(ChunkPolicy(10, 1, 3, 0), steps)
    assert sizes(posts) == [4, 4] + [8] * 19
    assert sizes(simulate(ChunkPolicy(3, 1, 1, 0), steps)) == [4] * 40


@both
def test_outputs_above_the_size_of_a_yield_are_not_merged(merges: bool) -> None:
    async def read_sizes() -> list[int]:
        schedule = Schedule(ChunkPolicy(50, 50, 1, 0), merges=merges)
        queue = due_outputs(schedule)
        for number in range(5):
            # Two of these fit a yield.
            queue.put(output(["a"], candidates=1700, finished=number == 4))
        return [len(text) for text in read(queue)]

    assert asyncio.run(read_sizes()) == ([1, 2, 2] if merges else [1] * 5)


async def test_tokens_without_an_event_are_counted_for_the_next_event() -> None:
    schedule = Schedule(EXACT, merges=True)
    one, other = due_outputs(schedule), due_outputs(schedule)
    assert schedule.take_event_weight() == 1
    for queue in (one, other, one):
        queue.put(output(["a"] * 9))
        assert queue.get_nowait() is not None
    assert [schedule.take_event_weight() for _ in range(3)] == [9, 18, 0]


# Several requests, and requests without a stream:


async def test_a_chunk_of_several_requests_has_the_tokens_of_all() -> None:
    schedule = Schedule(EXACT, merges=True)
    one, other = due_outputs(schedule), due_outputs(schedule)

    one.put(output(["a"]))
    assert (read(one), read(other)) == (["a"], [])
    other.put(output(["b"]))
    one.put(output(["c"]))
    assert (read(one), read(other)) == ([], [])
    other.put(output(["d"]))
    assert (read(one), read(other)) == (["c"], ["b", "d"])
    # The end of one request does not end the chunk of the other.
    one.put(output(["e"], finished=True))
    other.put(output(["f"] * 7))
    assert (read(one), read(other)) == (["e"], [])
    other.put(output(["g"]))
    assert read(other) == ["fffffffg"]


async def test_a_few_readers_are_woken_in_each_iteration_of_the_loop_the_first_ones_first() -> None:
    waker, count = ReaderWaker(), 3 * READERS_PER_ITERATION
    queues = [due_outputs(Schedule(EXACT, merges=True), waker) for _ in range(count)]
    readers = [asyncio.create_task(queue.get()) for queue in queues]
    await asyncio.sleep(0)
    for queue in queues:
        queue.put(output(["a"]))
    done = [0]
    while done[-1] < count:
        await asyncio.sleep(0)
        done.append(sum(reader.done() for reader in readers))
        assert all(reader.done() for reader in readers[: done[-1]])
    assert max(after - before for before, after in pairwise(done)) == READERS_PER_ITERATION


async def test_a_queue_that_is_closed_waits_no_longer() -> None:
    schedule = Schedule(ChunkPolicy(50, 50, 1, 0.01), merges=True)
    queue = due_outputs(schedule)
    queue.put(output(["a"]))
    queue.close()
    await asyncio.sleep(0.03)
    assert queue.get_nowait() is None


async def test_an_error_follows_the_outputs_that_have_arrived() -> None:
    queue = due_outputs(Schedule(EXACT, merges=True))
    for text in "abc":
        queue.put(output([text]))
    queue.put(ValueError("dead"))
    assert [(await queue.get()).outputs[0].text for _ in range(2)] == ["a", "bc"]
    with pytest.raises(ValueError, match="dead"):
        await queue.get()


@pytest.mark.parametrize("kind", RequestOutputKind)
@pytest.mark.parametrize(
    "schedule", [None, Schedule(DEFAULT, merges=True)], ids=["none", "schedule"]
)
async def test_only_the_streams_that_have_a_schedule_are_read_by_it(
    kind: RequestOutputKind, schedule: Schedule | None
) -> None:
    def collect() -> Any:
        if schedule:
            current_schedule.set(schedule)
        return make_collector(kind, "id", waker=ReaderWaker())

    is_due = isinstance(copy_context().run(collect), DueOutputs)
    assert is_due == (schedule is not None and kind is RequestOutputKind.DELTA)


# Any stream, over any connection, where every post takes some time:

pauses = st.sampled_from([0.0, 0.001, 0.005, 0.05, 0.3])
steps_of_tokens = st.lists(pauses, min_size=1, max_size=150).map(lambda each: tokens(*each))
any_steps = st.lists(
    st.builds(Step, pauses, st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=80
)
post_durations = st.sampled_from([0.0, 0.01, 0.05, 0.1])
policies_with_delay = chunk_policies.filter(lambda policy: policy.max_delay > 0)


@given(chunk_policies, any_steps, post_durations, st.booleans())
def test_every_token_is_sent_once_in_order_and_no_chunk_exceeds_its_maximum(
    policy: ChunkPolicy, steps: list[Step], post_s: float, merges: bool
) -> None:
    posts = simulate(policy, steps, merges=merges, post_s=post_s)
    for index in range(3):
        expected = [
            chr(FIRST_CHARACTER + number) * step.tokens
            for number, step in enumerate(steps)
            if step.index == index
        ]
        events = [event for post in posts for event in post.events if event.index == index]
        assert "".join(event.text for event in events) == "".join(expected)
    largest_step = max(step.tokens for step in steps)
    assert max(sizes(posts)) <= max(policy.largest, largest_step)


@given(chunk_policies.filter(lambda policy: not policy.max_delay), steps_of_tokens, post_durations)
def test_without_a_delay_the_times_of_tokens_and_posts_change_no_size(
    policy: ChunkPolicy, steps: list[Step], post_s: float
) -> None:
    chunks: Chunker[str] = Chunker(policy)
    chunks.add([Piece("", 1, 3) for _ in steps])
    exact = [len(chunk) for chunk in iter(chunks.take_chunk, [])]
    assert sizes(simulate(policy, steps, post_s=post_s)) == exact


@given(policies_with_delay, steps_of_tokens, post_durations, st.booleans())
def test_a_token_waits_for_the_maximum_delay_or_for_the_previous_post(
    policy: ChunkPolicy, steps: list[Step], post_s: float, merges: bool
) -> None:
    posts = simulate(policy, steps, merges=merges, post_s=post_s)
    free = [0.0, *(post.sent_at + post_s for post in posts)]
    for number, (post, free_at) in enumerate(zip(posts, free, strict=False)):
        if post.sent_at - post.events[0].arrived_at > policy.max_delay + 1e-9:
            assert math.isclose(post.sent_at, free_at)
        # Events that stay behind have not waited for the delay, or do not fit.
        for event in posts[number + 1].events[:1] if number + 1 < len(posts) else ():
            is_overdue = post.sent_at - event.arrived_at > policy.max_delay + 1e-9
            assert not is_overdue or len(post.text + event.text) > policy.largest


@given(policies_with_delay, steps_of_tokens, post_durations)
def test_no_more_posts_are_sent_than_sizes_and_maximum_delay_require(
    policy: ChunkPolicy, steps: list[Step], post_s: float
) -> None:
    posts = simulate(policy, steps, post_s=post_s)
    by_size = simulate(replace(policy, max_delay=0), tokens(*[0.0] * len(steps)))
    # Two chunks that are sent because of the delay are at least that delay apart.
    seconds = sum(step.pause for step in steps) + post_s * len(posts)
    assert len(posts) <= len(by_size) + math.floor(seconds / policy.max_delay) + 1


@given(
    st.integers(1, 400), st.sampled_from([0.005, 0.02, 0.05]), st.sampled_from([0.01, 0.05, 0.1])
)
def test_slow_posts_delay_the_end_of_a_response_by_at_most_three_posts(
    count: int, pace_s: float, post_s: float
) -> None:
    posts = simulate(DEFAULT, tokens(0.0, *[pace_s] * (count - 1)), post_s=post_s)
    engine_s = pace_s * (count - 1)
    # The post that is running when the engine finishes, and the rest; a very short stream has one
    # more chunk size.
    max_posts = 2 if engine_s >= 2 * post_s else 3
    assert posts[-1].sent_at + post_s <= engine_s + max_posts * post_s + 1e-9


# Requests whose events have one token each:

TOOLS = {"messages": [], "tools": [{"type": "function"}]}


@pytest.mark.parametrize(
    ("body", "options", "expected"),
    [
        (TOOLS, {}, False),
        (TOOLS, {"tool_call_parser": "hermes"}, False),
        (TOOLS, {"tool_call_parser": "llama3_json"}, True),
        ({"messages": []}, {"tool_call_parser": "llama3_json"}, False),
        ({"messages": []}, {"reasoning_parser": "qwen3"}, False),
        ({"messages": [], "stop": ["a"]}, {"reasoning_parser": "qwen3"}, True),
        ({"messages": [], "stop_sequences": ["a"]}, {"reasoning_parser": "qwen3"}, True),
        ({"messages": [], "stop": ["a"]}, {}, False),
        ({"messages": []}, {"reasoning_parser": "olmo3"}, True),
        ({"prompt": "Hi"}, {"reasoning_parser": "olmo3"}, False),
        ({"messages": []}, {"reasoning_parser": "own", "reasoning_parser_plugin": "a.py"}, True),
        (TOOLS, {"tool_call_parser": "own", "tool_parser_plugin": "a.py"}, True),
        ({"input": "Hi"}, {"tool_call_parser": "own", "tool_parser_plugin": "a.py"}, False),
        ({"prompt": "Hi", "stream_options": {"include_usage": True}}, {}, False),
        ({"prompt": "Hi", "stream_options": {"continuous_usage_stats": True}}, {}, True),
        ({"prompt": "Hi", "stream_options": None}, {}, False),
    ],
)
def test_some_parsers_and_usage_statistics_need_single_tokens(
    body: dict[str, Any], options: dict[str, str], expected: bool
) -> None:
    names = (
        "tool_call_parser",
        "tool_parser_plugin",
        "reasoning_parser",
        "reasoning_parser_plugin",
    )
    arguments = Namespace(**dict.fromkeys(names) | options)
    arguments.structured_outputs_config = arguments
    schedule = Schedule(DEFAULT, merges=True)
    separate_outputs(schedule, body, arguments)
    assert schedule.merges != expected


async def test_the_first_token_of_each_choice_is_not_merged() -> None:
    schedule = Schedule(ChunkPolicy(50, 50, 1, 0), merges=True)
    queue = due_outputs(schedule)
    for index in (0, 0, 1, 0, 0, 1):
        queue.put(output(["a"], index))
    queue.put(output(["a"], finished=True))
    results = iter(queue.get_nowait, None)
    found = [[(one.index, len(one.text)) for one in result.outputs] for result in results]
    assert found == [[(0, 1)], [(0, 1)], [(1, 1)], [(0, 3), (1, 1)]]


@pytest.mark.parametrize(("parser", "texts"), [("", ["a", "bc"]), ("qwen3", ["a", "b", "c"])])
async def test_the_end_of_an_answer_with_reasoning_is_not_merged(
    parser: str, texts: list[str]
) -> None:
    schedule = Schedule(EXACT, merges=True)
    reasoning = Namespace(reasoning_parser=parser, reasoning_parser_plugin="")
    separate_outputs(schedule, {"messages": []}, Namespace(structured_outputs_config=reasoning))
    queue = due_outputs(schedule)
    for text in "abc":
        queue.put(output([text], finished=text == "c"))
    assert read(queue) == texts
