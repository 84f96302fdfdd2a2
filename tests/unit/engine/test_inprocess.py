"""An engine in this process: its metrics, and how often it is restarted. No core is started."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter
from support.engine.scripted import settings

from worker.engine import Model
from worker.engine.inprocess import MOST_RESTARTS, InProcessEngine, Started, take_metrics


def test_vllms_metrics_of_an_engine_have_a_registry_of_their_own() -> None:
    take_metrics()  # metrics that importing vLLM may have registered
    vllms, other = Counter("vllm:asked", "Requests."), Counter("vllm_test", "Another's.")
    vllms.inc()
    try:
        assert REGISTRY.get_sample_value("vllm:asked_total") == 1
        apart = take_metrics()
        assert REGISTRY.get_sample_value("vllm:asked_total") is None
        assert REGISTRY.get_sample_value("vllm_test_total") == 0
        assert [family.name for family in apart.collect()] == ["vllm:asked"]
    finally:
        REGISTRY.unregister(other)
    assert list(take_metrics().collect()) == []


@pytest.mark.parametrize(
    ("scheduler", "ranks", "slots"),
    [
        ({"max_num_seqs": 8}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": None}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 1, 6),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 2, 12),
    ],
)
async def test_the_slots_are_those_of_all_data_parallel_ranks(
    scheduler: dict[str, int], ranks: int, slots: int
) -> None:
    parallel = SimpleNamespace(data_parallel_size=ranks)
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(**scheduler), parallel_config=parallel
    )
    fake: Any = SimpleNamespace(vllm_config=config)
    started, arguments, loop = (fake, CollectorRegistry()), fake, asyncio.get_running_loop()
    assert InProcessEngine(started, arguments, settings(), loop, Future()).slots == slots


class Watched(InProcessEngine):
    """Has a client and none of the parts that are built around it."""

    model = Model(("demo",), 1024, "cpu", frozenset())

    async def _use(self, started: Started) -> None:
        self._client, _ = started


class FakeClient:
    """Counts how often somebody looks whether it is dead."""

    output_handler = None

    def __init__(self, *, dead: bool) -> None:
        self._dead = dead
        self.looks = 0

    @property
    def errored(self) -> bool:
        self.looks += 1
        return self._dead

    def shutdown(self) -> None:
        pass


def client(*, dead: bool) -> Started:
    fake: Any = FakeClient(dead=dead)
    return fake, CollectorRegistry()


async def watched(restarts: list[bool] | None) -> tuple[bool, list[bool]]:
    """Open an engine that is dead; return whether it is given up, and the restarts left.

    Args:
        restarts: whether the next clients are dead, the last one first; None: it is not restarted.
    """
    died: Future[None] = Future()
    again = None if restarts is None else lambda: client(dead=restarts.pop())
    loop = asyncio.get_running_loop()
    arguments: Any = None
    engine = Watched(client(dead=True), arguments, settings(), loop, died, again)
    await engine.open()
    async with asyncio.timeout(60):
        # A dead client is looked at once; one that lives, again and again.
        while not died.done() and cast("Any", engine._client).looks < 2:
            await asyncio.sleep(0.01)
    await engine.close()
    return died.done(), restarts or []


async def test_requests_of_a_dead_engine_fail_before_it_is_shut_down() -> None:
    """vLLM passes a death on to them in a task that its shutdown cancels."""
    passed_on = asyncio.Event()
    handler = asyncio.create_task(passed_on.wait())
    order: list[str] = []
    handler.add_done_callback(lambda _: order.append("failed"))
    dead: Any = SimpleNamespace(
        errored=True, output_handler=handler, shutdown=lambda: order.append("shut down")
    )
    loop, arguments = asyncio.get_running_loop(), cast("Any", None)
    started = (dead, CollectorRegistry())
    engine = Watched(
        started, arguments, settings(), loop, Future(), start_again=lambda: client(dead=False)
    )
    await engine.open()
    loop.call_later(0.5, passed_on.set)
    async with asyncio.timeout(60):
        while engine.dead:
            await asyncio.sleep(0.01)
    await engine.close()
    assert order == ["failed", "shut down"]


async def test_an_engine_that_is_not_restarted_is_given_up_when_it_dies() -> None:
    assert await watched(None) == (True, [])


@pytest.mark.parametrize("deaths", [0, MOST_RESTARTS - 1])
async def test_an_engine_that_comes_back_is_not_given_up(deaths: int) -> None:
    assert await watched([False, *[True] * deaths]) == (False, [])


async def test_the_number_of_restarts_is_limited() -> None:
    assert await watched([False, *[True] * MOST_RESTARTS]) == (True, [False])
