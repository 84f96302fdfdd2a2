"""Deaths and hangs of cores: who is to blame, and what takes their place. No core is a process."""

import asyncio
import logging

import pytest
from support.engine.cores import CLOCK, FakeCore, healing
from support.processes.background import eventually

from worker.engine.run.healing.suspects import Suspects, belongs
from worker.engine.run.healing.watchdog import LATE_S, Silence, prefill_s
from worker.errors import EngineDead, KilledEngine, StartFailed

HANG_S = 2


async def test_a_core_that_died_is_replaced_and_what_is_left_of_it_removed() -> None:
    first, second = FakeCore(), FakeCore()
    async with healing(first, second) as (healer, used):
        first.die()
        await eventually(lambda: not healer.dead)
    assert used == [second]
    assert healer.core is second  # type: ignore[comparison-overlap]  # a fake
    assert first.happened == ["removed"]


async def test_the_requests_of_a_dead_core_fail_before_it_is_shut_down() -> None:
    """vLLM passes a death on to them in a task that its shutdown cancels."""
    passed_on = asyncio.Event()
    first = FakeCore(handler=asyncio.create_task(passed_on.wait()))
    assert first.handler
    first.handler.add_done_callback(lambda _: first.happened.append("failed"))
    async with healing(first, FakeCore()) as (healer, _):
        first.die()
        asyncio.get_running_loop().call_later(0.05, passed_on.set)
        await eventually(lambda: not healer.dead)
    assert first.happened == ["failed", "removed"]


async def test_after_so_many_restarts_it_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    cores = [FakeCore(is_dead=True) for _ in range(3)]
    async with healing(*cores) as (healer, used):
        with pytest.raises(EngineDead):
            await healer.back("job")
    assert used == cores[1:]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    died = "the engine of demo died: ValueError: broken: it is "
    assert lines == [f"{died}{again}" for again in ["started again"] * 2 + ["not started again"]]


@pytest.mark.parametrize("failure", [RuntimeError("no memory"), StartFailed("EIO: config.json")])
async def test_a_start_that_fails_counts_as_a_restart(failure: Exception) -> None:
    last = FakeCore()
    async with healing(FakeCore(is_dead=True), failure, last) as (healer, used):
        await healer.back("job")
    assert used == [last]


async def test_a_new_core_that_nothing_can_be_built_on_is_removed() -> None:
    unusable, last = FakeCore(unusable=True), FakeCore()
    async with healing(FakeCore(is_dead=True), unusable, last) as (healer, used):
        await healer.back("job")
    assert (unusable.happened, used) == (["removed"], [last])


async def test_only_one_newcomer_of_a_crash_is_refused_and_the_others_go_on() -> None:
    first = FakeCore().add("chatcmpl-killer", new=True).add("chatcmpl-other")
    async with healing(first, FakeCore()) as (healer, _):
        first.die()
        with pytest.raises(KilledEngine):
            await healer.back("killer")
        await healer.back("other")


async def test_no_request_is_to_blame_for_a_core_that_was_ended_from_outside() -> None:
    first = FakeCore(crashes=False).add("only", new=True)
    async with healing(first, FakeCore()) as (healer, _):
        first.die()
        await healer.back("only")


async def test_several_newcomers_begin_again_one_after_the_other() -> None:
    first, second = FakeCore().add("a", new=True).add("b", new=True), FakeCore()
    async with healing(first, second) as (healer, _):
        first.die()
        await healer.back("a")
        second.add("a", new=True)
        waits = asyncio.create_task(healer.back("b"))
        await CLOCK.pass_by(5)
        assert not waits.done()
        second.requests[0].is_prefilling = False
        await waits


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(FakeCore(), id="uses nothing"),
        pytest.param(FakeCore(share=1), id="computes for too long"),
        pytest.param(FakeCore(share=0.15, processes=8), id="uses what its processes use that wait"),
        pytest.param(FakeCore(stopped=True), id="stopped"),
        pytest.param(FakeCore(stopped=True, builds=True), id="stopped while it builds"),
    ],
)
async def test_a_core_that_hangs_is_ended_and_replaced(first: FakeCore) -> None:
    first.add("job")
    begun = CLOCK.now
    async with healing(first, FakeCore(), hang_s=HANG_S) as (_, used):
        await eventually(lambda: used)
    assert first.happened == ["killed", "removed"]
    assert HANG_S <= first.killed_at - begun < 2 * HANG_S


@pytest.mark.parametrize(
    ("core", "hang_s"),
    [
        pytest.param(FakeCore(share=0.1).add("a"), HANG_S, id="gets little of a busy machine"),
        pytest.param(FakeCore(builds=True).add("a"), HANG_S, id="builds code"),
        pytest.param(
            FakeCore(prompt_limit=10_000).add("a", new=True, prompt_len=10_000),
            HANG_S,
            id="computes a long prompt",
        ),
        pytest.param(FakeCore(), HANG_S, id="idle"),
        pytest.param(FakeCore(stopped=True).add("a"), 0, id="not watched"),
    ],
)
async def test_another_core_is_left_alone(core: FakeCore, hang_s: float) -> None:
    async with healing(core, hang_s=hang_s):
        end = CLOCK.now + 3 * HANG_S
        await eventually(lambda: CLOCK.now > end or core.happened)
    assert core.happened == []


# Which requests may have killed a core


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
def test_an_id_of_vllms_contains_the_callers(id_: str, request_id: str, belong: bool) -> None:
    assert belongs(id_, request_id) is belong


# A letter is a request. A crash: its newcomers, and all others that ran.
@pytest.mark.parametrize(
    ("crashes", "killer", "suspects"),
    [
        pytest.param(["a/b"], "a", "a", id="the only newcomer"),
        pytest.param(["ab/c"], "", "ab", id="several newcomers"),
        pytest.param(["ab/", "bcd/"], "b", "b", id="the newcomer that was one before"),
        pytest.param(["a/", "/b"], "", "", id="no newcomers: the one before is forgotten"),
        pytest.param(["/ab"], "", "", id="no newcomers"),
        pytest.param(["/ab", "/bc"], "b", "b", id="the only one of two crashes in a row"),
        pytest.param(["ab/c", "/abd"], "", "ab", id="several of two crashes in a row"),
        pytest.param(["aa/"], "a", "a", id="two choices of one request"),
    ],
)
def test_one_kills_and_several_are_suspects(crashes: list[str], killer: str, suspects: str) -> None:
    found = Suspects()
    for newcomers, _, others in (crash.partition("/") for crash in crashes):
        found.crashed(newcomers, others)
    assert "".join(filter(found.is_killer, "abcd")) == killer
    assert "".join(filter(found.is_suspect, "abcd")) == suspects


# A core that hangs, told from one that computes


@pytest.mark.parametrize(
    ("beat_at", "idle_until", "silent_s"),
    [
        pytest.param(3, 0, 7, id="since the last sign of life"),
        pytest.param(0, 6, 4, id="since the first request"),
        pytest.param(0, 20, 0, id="not while it is idle"),
    ],
)
def test_silence_counts(beat_at: float, idle_until: float, silent_s: float) -> None:
    silence, found = Silence(0), 0.0
    for now in range(1, 11):
        beat = beat_at if now >= beat_at else 0
        found = silence.look(now, beat, busy=now > idle_until)
    assert found == silent_s


def test_a_time_in_which_this_process_was_frozen_does_not_count() -> None:
    silence = Silence(0)
    assert silence.look(1, 0, busy=True) == 1
    assert silence.look(1 + LATE_S + 60, 0, busy=True) == 0
    assert silence.look(1 + LATE_S + 61, 0, busy=True) == 1


@pytest.mark.parametrize(
    ("prompts", "most", "device", "seconds"),
    [([], 8192, "cuda", 0), ([100, 50], 8192, "cpu", 3), ([100_000], 2000, "cuda", 4)],
)
def test_prompts_give_a_step_more_time_up_to_the_most_that_it_computes(
    prompts: list[int], most: int, device: str, seconds: float
) -> None:
    core = FakeCore(prompt_limit=most, device=device).add("begun", prompt_len=1000)
    for number, tokens in enumerate(prompts):
        core.add(str(number), new=True, prompt_len=tokens)
    assert prefill_s(core.requests, core.client.vllm_config) == seconds
