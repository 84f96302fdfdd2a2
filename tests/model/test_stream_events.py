"""Tests that a client reads the same from events with a chunk and from events with one token."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given, seed, settings
from model.conftest import launch_engine
from support.releases import needs_vllm
from support.streams.checks import EventComparer, make_sender
from support.streams.requests import StreamRequest, stream_requests

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

pytestmark = needs_vllm("0.31", "omits the log probabilities of tokens that a parser withholds")

REQUESTS = 16
OPTIONS = {
    "ENABLE_AUTO_TOOL_CHOICE": "1",
    "TOOL_CALL_PARSER": "hermes",
    # Without the cache, a request is computed in the same way each time.
    "ENABLE_PREFIX_CACHING": "0",
}


@pytest.fixture(scope="module")
def comparer(settings: Settings) -> Iterator[EventComparer]:
    with launch_engine(settings, **OPTIONS) as engine, asyncio.Runner() as runner:
        yield EventComparer(make_sender(Worker(Engines(engine), settings), runner))


@seed(7)
@settings(max_examples=REQUESTS)
@given(sent=stream_requests)
def test_a_client_reads_the_same_for_each_number_of_events(
    comparer: EventComparer, sent: StreamRequest
) -> None:
    assert comparer.find_differences(sent) == []


def test_the_requests_are_answered_with_several_tokens_in_an_event(
    comparer: EventComparer,
) -> None:
    assert comparer.requests >= REQUESTS
    assert comparer.refused + comparer.unstable < REQUESTS / 10
    assert comparer.largest_event > 4
