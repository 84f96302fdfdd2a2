"""Crashes, hangs and suspensions of cores: the requests to blame, and restarts.

The cores are fake, and the healer's clock advances whenever it is read.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

import pytest
from support.metrics import watch_metrics
from support.processes.background import HUNG_S, poll_until, settle

from worker.engine.run import healing
from worker.engine.run.healing import (
    MAX_UPDATE_GAP_S,
    Healer,
    SilenceTimer,
    Suspects,
    is_id_of_request,
    max_prefill_s,
)
from worker.errors import EngineDead, EngineSuspended, RequestKilledEngine, StartFailed

HANG_S = 2
REMOVAL = ["killed", "removed"]


class Clock:
    """A clock that advances by a tenth of a second each time it is read, and only then."""

    now = 1000.0

    def monotonic(self) -> float:
        self.now += 0.1
        return self.now

    async def wait(self, seconds: float) -> None:
        """Wait until the clock has been read often enough for these seconds to pass."""
        end = self.now + seconds
        await poll_until(lambda: self.now > end)


CLOCK = Clock()


@dataclass
class FakeCore:
    """A core that has requests, and dies on demand; it is its own client and output processor."""

    crashes: bool = True
    errored: bool = False
    is_paused: bool = False
    is_compiling: bool = False
    unfinished_requests: list[Any] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    output_handler: "asyncio.Task[Any] | None" = None
    prompt_limit: int = 100
    device: str = "cpu"
    # An attempt to use the core raises an error.
    is_unusable: bool = False
    # Processor time per second of the clock; 1 is one busy processor.
    cpu_share: float = 0
    initial_process_count: int = 1
    # Reading of the clock.
    killed_at: float = 0

    def __post_init__(self) -> None:
        self.client = self.output_processor = self
        self.heartbeat = SimpleNamespace(last_at=0.0)
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_batched_tokens=self.prompt_limit),
            device_config=SimpleNamespace(device_type=self.device),
        )

    @property
    def cpu_time_s(self) -> float:
        return 1 + self.cpu_share * CLOCK.now

    def has_unfinished_requests(self) -> bool:
        return bool(self.unfinished_requests)

    def _request_ids(self, *, new: bool) -> set[str]:
        return {one.external_req_id for one in self.unfinished_requests if one.is_prefilling is new}

    def prefilling_request_ids(self, until: float) -> set[str]:
        return self._request_ids(new=True)

    @property
    def decoding_request_ids(self) -> set[str]:
        return self._request_ids(new=False)

    @property
    def is_idle(self) -> bool:
        return not self.unfinished_requests

    def has_crashed(self) -> bool:
        return self.crashes

    def add(self, id_: str, *, new: bool = False, prompt_len: int = 1) -> Self:
        self.unfinished_requests.append(
            SimpleNamespace(external_req_id=id_, is_prefilling=new, prompt_len=prompt_len)
        )
        return self

    def die(self) -> None:
        self.errored = True

    def kill(self) -> None:
        self.calls.append("killed")
        self.killed_at = CLOCK.now
        self.die()

    async def fail_calls_and_close(self) -> str:
        self.calls.append("removed")
        return "ValueError: broken"


@contextlib.asynccontextmanager
async def run_healer(
    first: FakeCore, *others: FakeCore | Exception, restarts: int = 2, hang_s: float = 0
) -> AsyncIterator[tuple[Healer, list[Any]]]:
    """Run a healer that starts the other cores one after the other; list the cores that it uses."""
    queue, used = list(others), []

    def start() -> Any:
        following = queue.pop(0)
        if isinstance(following, Exception):
            raise following
        return following

    async def use(core: Any) -> None:
        if core.is_unusable:
            raise ValueError("no such adapter")
        used.append(core)

    core: Any = first
    healer = Healer("demo", core, start, use, max_restarts=restarts, hang_s=hang_s)
    running = asyncio.create_task(healer.run())
    async with asyncio.timeout(HUNG_S):
        yield healer, used
    running.cancel()
    await asyncio.wait([running])


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the healer poll without pauses, and its clock advance by 0.1 seconds per reading."""
    monkeypatch.setattr(healing, "WATCH_INTERVAL_S", 0.001)
    monkeypatch.setattr(healing, "POLL_INTERVAL_S", 0.001)
    monkeypatch.setattr(healing, "time", CLOCK)


async def test_a_dead_core_is_removed_and_replaced() -> None:
    first, second = FakeCore(), FakeCore()
    async with run_healer(first, second) as (healer, used):
        first.die()
        await poll_until(lambda: not healer.is_dead)
    assert used == [second]
    assert healer.core is second  # type: ignore[comparison-overlap]  # a fake
    assert first.calls == ["removed"]


async def test_the_requests_of_a_dead_core_fail_before_it_is_shut_down() -> None:
    """vLLM reports a crash to the requests in a task that its shutdown cancels."""
    reported = asyncio.Event()
    first = FakeCore(output_handler=asyncio.create_task(reported.wait()))
    assert first.output_handler
    first.output_handler.add_done_callback(lambda _: first.calls.append("failed"))
    async with run_healer(first, FakeCore()) as (healer, _):
        first.die()
        asyncio.get_running_loop().call_later(0.05, reported.set)
        await poll_until(lambda: not healer.is_dead)
    assert first.calls == ["failed", "removed"]


async def test_the_number_of_restarts_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    cores = [FakeCore(errored=True) for _ in range(3)]
    restarts = watch_metrics("worker_engine_restarts_total")
    async with run_healer(*cores) as (healer, used):
        with pytest.raises(EngineDead):
            await healer.wait_for_recovery("job")
    assert used == cores[1:]
    assert restarts() == [2]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    prefix = "the engine of demo died: ValueError: broken; "
    assert lines == [
        f"{prefix}{again}" for again in ["restarting it"] * 2 + ["it is not restarted"]
    ]


async def test_a_core_that_the_exit_of_the_worker_kills_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exiting = threading.Event()
    exiting.set()
    monkeypatch.setattr(healing, "exiting", exiting)
    first = FakeCore(errored=True)
    async with run_healer(first, FakeCore()) as (healer, used):
        recovery = asyncio.create_task(healer.wait_for_recovery("job"))
        await poll_until(lambda: first.calls == ["removed"])
        await settle()
        assert (used, recovery.done()) == ([], False)
        recovery.cancel()


@pytest.mark.parametrize("failure", [RuntimeError("no memory"), StartFailed("EIO: config.json")])
async def test_a_failed_startup_counts_as_a_restart(failure: Exception) -> None:
    last = FakeCore()
    async with run_healer(FakeCore(errored=True), failure, last) as (healer, used):
        await healer.wait_for_recovery("job")
    assert used == [last]


async def test_an_unusable_new_core_is_removed() -> None:
    unusable, last = FakeCore(is_unusable=True), FakeCore()
    async with run_healer(FakeCore(errored=True), unusable, last) as (healer, used):
        await healer.wait_for_recovery("job")
    assert (unusable.calls, used) == (["removed"], [last])


async def test_the_only_new_request_of_a_crash_is_refused_and_others_continue() -> None:
    first = FakeCore().add("chatcmpl-killer", new=True).add("chatcmpl-other")
    async with run_healer(first, FakeCore()) as (healer, _):
        first.die()
        with pytest.raises(RequestKilledEngine):
            await healer.wait_for_recovery("killer")
        await healer.wait_for_recovery("other")


async def test_no_request_is_blamed_for_a_core_that_was_killed_from_outside() -> None:
    first = FakeCore(crashes=False).add("only", new=True)
    async with run_healer(first, FakeCore()) as (healer, _):
        first.die()
        await healer.wait_for_recovery("only")


async def test_several_new_requests_restart_sequentially() -> None:
    first, second = FakeCore().add("a", new=True).add("b", new=True), FakeCore()
    async with run_healer(first, second) as (healer, _):
        first.die()
        await healer.wait_for_recovery("a")
        second.add("a", new=True)
        waits = asyncio.create_task(healer.wait_for_recovery("b"))
        await CLOCK.wait(5)
        assert not waits.done()
        second.unfinished_requests[0].is_prefilling = False
        await waits


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(FakeCore(), id="uses no processor time"),
        pytest.param(FakeCore(cpu_share=1), id="computes for too long"),
        pytest.param(
            FakeCore(cpu_share=0.15, initial_process_count=8),
            id="uses only the time of waiting processes",
        ),
        pytest.param(FakeCore(is_paused=True), id="stopped"),
        pytest.param(
            FakeCore(is_paused=True, is_compiling=True), id="stopped while it compiles code"
        ),
    ],
)
async def test_a_core_that_hangs_is_killed_and_replaced(first: FakeCore) -> None:
    first.add("job")
    start = CLOCK.now
    async with run_healer(first, FakeCore(), hang_s=HANG_S) as (_, used):
        await poll_until(lambda: used)
    assert first.calls == ["killed", "removed"]
    assert HANG_S <= first.killed_at - start < 2 * HANG_S


@pytest.mark.parametrize(
    ("core", "hang_s"),
    [
        pytest.param(
            FakeCore(cpu_share=0.1).add("a"), HANG_S, id="gets little time on a busy machine"
        ),
        pytest.param(FakeCore(is_compiling=True).add("a"), HANG_S, id="compiles code"),
        pytest.param(
            FakeCore(prompt_limit=10_000).add("a", new=True, prompt_len=10_000),
            HANG_S,
            id="computes a long prompt",
        ),
        pytest.param(FakeCore(), HANG_S, id="idle"),
        pytest.param(FakeCore(is_paused=True).add("a"), 0, id="not watched"),
    ],
)
async def test_a_core_that_does_not_hang_is_not_killed(core: FakeCore, hang_s: float) -> None:
    async with run_healer(core, hang_s=hang_s):
        end = CLOCK.now + 3 * HANG_S
        await poll_until(lambda: CLOCK.now > end or core.calls)
    assert core.calls == []


# Requests that may have killed a core


@pytest.mark.parametrize(
    ("id_", "request_id", "belong"),
    [
        ("job", "job", True),
        ("chatcmpl-job", "job", True),
        ("cmpl-job-0", "job", True),
        ("resp_job", "job", True),
        ("job-12", "job-1", False),
        ("job-1", "job-12", False),
        ("ajob", "job", False),
        ("other", "job", False),
    ],
)
def test_an_id_of_vllm_belongs_to_the_request_whose_id_it_contains(
    id_: str, request_id: str, belong: bool
) -> None:
    assert is_id_of_request(id_, request_id) is belong


# Each letter is a request: the new ones of a crash, a slash, and the others that ran.
@pytest.mark.parametrize(
    ("crashes", "killer", "suspects"),
    [
        pytest.param(["a/b"], "a", "a", id="the only new request"),
        pytest.param(["ab/c"], "", "ab", id="several new requests"),
        pytest.param(["ab/", "bcd/"], "b", "b", id="the request that was new in both crashes"),
        pytest.param(["a/", "/b"], "", "", id="no new requests: the previous one is forgotten"),
        pytest.param(["/ab"], "", "", id="no new requests"),
        pytest.param(["/ab", "/bc"], "b", "b", id="the only request of two consecutive crashes"),
        pytest.param(["ab/c", "/abd"], "", "ab", id="several requests of two consecutive crashes"),
        pytest.param(["aa/"], "a", "a", id="two choices of one request"),
    ],
)
def test_one_candidate_is_the_killer_and_several_are_suspects(
    crashes: list[str], killer: str, suspects: str
) -> None:
    found = Suspects()
    for new_requests, _, others in (crash.partition("/") for crash in crashes):
        found.record_crash(new_requests, others)
    assert "".join(filter(found.is_killer, "abcd")) == killer
    assert "".join(filter(found.is_suspect, "abcd")) == suspects


# A core that hangs, and one that computes


@pytest.mark.parametrize(
    ("beat_at", "idle_until", "silent_s"),
    [
        pytest.param(3, 0, 7, id="since the last sign of life"),
        pytest.param(0, 6, 4, id="since the first request"),
        pytest.param(0, 20, 0, id="not while it is idle"),
    ],
)
def test_silence_is_measured_while_the_core_is_busy(
    beat_at: float, idle_until: float, silent_s: float
) -> None:
    silence, found = SilenceTimer(0), 0.0
    for now in range(1, 11):
        beat = beat_at if now >= beat_at else 0
        found = silence.update_and_get_silence(now, beat, is_busy=now > idle_until)
    assert found == silent_s


def test_time_in_which_this_process_was_frozen_is_not_counted() -> None:
    silence = SilenceTimer(0)
    assert silence.update_and_get_silence(1, 0, is_busy=True) == 1
    assert silence.update_and_get_silence(1 + MAX_UPDATE_GAP_S + 60, 0, is_busy=True) == 0
    assert silence.update_and_get_silence(1 + MAX_UPDATE_GAP_S + 61, 0, is_busy=True) == 1


@pytest.mark.parametrize(
    ("prompts", "token_limit", "device", "seconds"),
    [([], 8192, "cuda", 0), ([100, 50], 8192, "cpu", 3), ([100_000], 2000, "cuda", 4)],
)
def test_long_prompts_extend_the_time_of_a_step_up_to_its_token_limit(
    prompts: list[int], token_limit: int, device: str, seconds: float
) -> None:
    core = FakeCore(prompt_limit=token_limit, device=device).add("begun", prompt_len=1000)
    for number, tokens in enumerate(prompts):
        core.add(str(number), new=True, prompt_len=tokens)
    assert max_prefill_s(core.unfinished_requests, core.client.vllm_config) == seconds


# Suspensions


class Caller:
    """A caller that suspends an engine until it is cancelled."""

    def __init__(self, healer: Healer) -> None:
        self.suspended = asyncio.Event()
        self.task = asyncio.create_task(self._suspend(healer))

    async def _suspend(self, healer: Healer) -> None:
        async with healer.suspend(HUNG_S, HUNG_S):
            self.suspended.set()
            await asyncio.Event().wait()

    async def cancel(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def test_the_core_is_removed_during_a_suspension_and_replaced_after_it() -> None:
    first, second = FakeCore(), FakeCore()
    async with run_healer(first, second, restarts=0) as (healer, used):
        async with healer.suspend(HUNG_S, HUNG_S):
            assert (first.calls, used, healer.is_dead) == (REMOVAL, [], False)
        assert (used, healer.is_dead) == ([second], False)


async def test_a_suspension_waits_for_running_requests() -> None:
    first = FakeCore().add("job")
    async with run_healer(first, FakeCore()) as (healer, _):
        caller = Caller(healer)
        await CLOCK.wait(5)
        assert (first.calls, caller.suspended.is_set()) == ([], False)
        first.unfinished_requests.clear()
        await caller.suspended.wait()
        await caller.cancel()


async def test_a_request_that_runs_too_long_is_ended_without_being_a_suspect() -> None:
    first = FakeCore().add("job", new=True)
    async with run_healer(first, FakeCore(), restarts=0) as (healer, _):
        async with healer.suspend(HUNG_S, 0.2):
            waiting = asyncio.create_task(healer.wait_for_recovery("job"))
            await settle()
            assert not waiting.done()
        await waiting


async def test_a_request_waits_up_to_the_limit_and_is_refused_with_a_retry_time() -> None:
    async with run_healer(FakeCore(), FakeCore()) as (healer, _):
        async with healer.suspend(0.05, HUNG_S):
            for wait in (healer.suspension.wait_until_resumed(), healer.wait_for_recovery("job")):
                with pytest.raises(EngineSuspended) as refused:
                    await wait
        await healer.suspension.wait_until_resumed()
    error = refused.value.body()["error"]
    assert (error["code"], error["retryable"], error["retry_after"]) == (503, True, 60)
    assert "60 seconds" in error["message"]


async def test_a_crash_before_the_suspension_is_blamed_on_its_request_and_counts_as_a_restart() -> (
    None
):
    first, last = FakeCore().add("job", new=True), FakeCore()
    async with run_healer(first, FakeCore(), last, restarts=1) as (healer, used):
        asyncio.get_running_loop().call_later(0.05, first.die)
        async with healer.suspend(HUNG_S, HUNG_S):
            assert first.calls == REMOVAL[1:]
        with pytest.raises(RequestKilledEngine):
            await healer.wait_for_recovery("job")
        healer.core.kill()
        with pytest.raises(EngineDead):
            await healer.wait_for_recovery("other")
    assert last not in used


async def test_a_caller_that_leaves_while_requests_run_does_not_stop_the_core() -> None:
    first = FakeCore().add("job")
    async with run_healer(first) as (healer, _):
        caller = Caller(healer)
        await poll_until(lambda: healer.suspension.is_active)
        await caller.cancel()
        assert (first.calls, healer.suspension.is_active, healer.is_dead) == ([], False, False)


async def test_the_engine_returns_after_its_caller_is_cancelled_even_twice() -> None:
    second, third = FakeCore(), FakeCore()
    async with run_healer(FakeCore(), second, third) as (healer, used):
        caller = Caller(healer)
        await caller.suspended.wait()
        await caller.cancel()
        # The cancelled caller has waited until the engine is back.
        assert (used, healer.is_dead) == ([second], False)
        caller = Caller(healer)
        await caller.suspended.wait()
        caller.task.cancel()
        await asyncio.sleep(0)
        await caller.cancel()
        await poll_until(lambda: used == [second, third])


async def test_a_second_caller_waits_for_the_first() -> None:
    cores = [FakeCore() for _ in range(3)]
    async with run_healer(*cores) as (healer, used):
        first = Caller(healer)
        await first.suspended.wait()
        second = Caller(healer)
        await settle()
        assert not second.suspended.is_set()
        await first.cancel()
        await second.suspended.wait()
        assert [core.calls for core in cores] == [REMOVAL, REMOVAL, []]
        await second.cancel()
        assert used == cores[1:]


async def test_a_dead_engine_can_not_be_suspended() -> None:
    async with run_healer(FakeCore(errored=True), restarts=0) as (healer, _):
        with pytest.raises(EngineDead):
            await healer.wait_for_recovery("job")
        with pytest.raises(EngineDead):
            async with healer.suspend(HUNG_S, HUNG_S):
                pytest.fail("it has a block")
        assert healer.is_dead


async def test_an_engine_that_fails_to_start_after_a_suspension_is_restarted_up_to_the_limit() -> (
    None
):
    broken = RuntimeError("no memory")
    async with run_healer(FakeCore(), broken, broken, restarts=1) as (healer, used):
        async with healer.suspend(HUNG_S, HUNG_S):
            pass
        with pytest.raises(EngineDead):
            await healer.wait_for_recovery("job")
    assert used == []
