"""Faults on demand, as a worker sees them."""

import asyncio
from typing import Any

import pytest
from support.processes.emulator_peer import Peer, emulator_peer, eventually

from emulator import Action, Call, Fault
from emulator.faults import Faults

FAULTS = "/control/faults"
on_each_call = pytest.mark.parametrize("call", ["take", "stop", "stream", "done"])


async def prepare(peer: Peer, call: str) -> str:
    """Queue a job, and bring it to the state in which a worker makes the call; return its id."""
    job = await (peer.run if call == "take" else peer.start)()
    if call == "stop":
        await peer.post(f"/cancel/{job}")
    return job


def request(call: str, job: str) -> tuple[str, str, Any]:
    """Return the method, path and body of the worker's call."""
    if call in ("take", "stop"):
        return "GET", f"/job-{call}/w", None
    return "POST", f"/job-{call}/w/{job}", {"output": "x"}


def took_effect(peer: Peer, call: str, job_id: str) -> bool:
    """Return whether the call changed the emulator's state."""
    job = peer.emulator.job(job_id)
    effects = {
        "take": job.status == "IN_PROGRESS",
        "stop": peer.worker.stops == [],
        "stream": len(job.chunks) == 1,
        "done": job.status == "COMPLETED",
    }
    return effects[call]


async def assert_reset(peer: Peer, call: str, job: str) -> None:
    with pytest.raises(ConnectionResetError):
        await peer.raw(*request(call, job))


@pytest.mark.parametrize("status", [429, None])
@on_each_call
async def test_a_call_with_a_status_does_nothing(peer: Peer, call: str, status: int | None) -> None:
    job = await prepare(peer, call)
    await peer.add_fault(on=call, do="status", **({"status": status} if status else {}))
    method, path, body = request(call, job)
    answer = await peer.request(method, path, json=body)
    assert answer == (status or 500, {"error": "a fault on demand"})
    assert not took_effect(peer, call, job)


@pytest.mark.parametrize(("action", "effective"), [("reset", False), ("lose", True)])
@on_each_call
async def test_a_call_that_is_reset_has_an_effect_only_if_its_answer_alone_was_lost(
    peer: Peer, call: str, action: str, effective: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job = await prepare(peer, call)
    await peer.add_fault(on=call, do=action)
    await assert_reset(peer, call, job)
    assert took_effect(peer, call, job) is effective
    assert caplog.records == []


@pytest.mark.parametrize("ends_by", ["its time", "being cleared"])
@on_each_call
async def test_a_hanging_call_is_reset_when_its_fault_ends(
    peer: Peer, call: str, ends_by: str
) -> None:
    job = await prepare(peer, call)
    await peer.add_fault(on=call, do="hang", calls=1, seconds=60)
    calling = asyncio.create_task(peer.raw(*request(call, job)))
    await eventually(lambda: not peer.emulator.faults.active())
    await peer.get("/health")
    assert not calling.done()
    if ends_by == "its time":
        peer.let_pass(60)
    else:
        await peer.request("DELETE", FAULTS)
    with pytest.raises(ConnectionResetError):
        await calling
    assert not took_effect(peer, call, job)


async def test_a_worker_can_hang_up_a_call_that_hangs_and_others_go_on(peer: Peer) -> None:
    job = await peer.run()
    await peer.add_fault(on="take", do="hang", calls=1)
    taking = asyncio.create_task(peer.raw("GET", "/job-take/w"))
    await eventually(lambda: not peer.emulator.faults.active())
    taking.cancel()
    assert await peer.take() == job


async def test_a_take_of_several_jobs_meets_the_faults_of_a_take(peer: Peer) -> None:
    await peer.run()
    await peer.add_fault(on="take", do="status", status=429)
    assert (await peer.request("GET", "/job-take-batch/w?batch_size=2"))[0] == 429


async def test_a_job_whose_take_was_lost_is_delivered_to_no_other_worker(peer: Peer) -> None:
    job = await peer.run()
    await peer.add_fault(on="take", do="lose", calls=1)
    await assert_reset(peer, "take", job)
    assert await peer.take("other") is None


@on_each_call
async def test_a_delayed_call_has_its_effect_at_once(peer: Peer, call: str) -> None:
    job = await prepare(peer, call)
    await peer.add_fault(on=call, do="delay", delay_s=60)
    method, path, body = request(call, job)
    calling = asyncio.create_task(peer.request(method, path, json=body))
    await eventually(lambda: took_effect(peer, call, job))
    await peer.get("/health")
    assert not calling.done()
    peer.let_pass(60)
    answers = {"take": {"id": job, "input": None}, "stop": {"jobsToStop": [job]}}
    assert await calling == (200, answers.get(call, {}))


@pytest.mark.parametrize("call", ["take", "stop"])
async def test_what_a_worker_that_hung_up_missed_comes_again(peer: Peer, call: str) -> None:
    job = await prepare(peer, call)
    await peer.add_fault(on=call, do="delay", delay_s=60)
    calling = asyncio.create_task(peer.raw(*request(call, job)))
    await eventually(lambda: took_effect(peer, call, job))
    calling.cancel()
    await eventually(lambda: not took_effect(peer, call, job))
    await peer.request("DELETE", FAULTS)
    assert await (peer.take() if call == "take" else peer.stops()) in (job, [job])


@pytest.mark.parametrize("path", ["/job-take/w", "/job-take-batch/w?batch_size=4"])
async def test_a_duplicated_take_delivers_the_same_jobs_once_more(peer: Peer, path: str) -> None:
    for _ in range(2):
        await peer.run()
    await peer.add_fault(on="take", do="duplicate", calls=1)
    first, second, third = [await peer.get(path) for _ in range(3)]
    assert first == second != third
    jobs = first if isinstance(first, list) else [first]
    assert {await peer.status(job["id"]) for job in jobs} == {"IN_PROGRESS"}


async def test_a_fault_for_some_calls_runs_out_and_shows_what_is_left(peer: Peer) -> None:
    job = await peer.start()
    fault = {"on": "stream", "do": "status", "status": 503}
    assert await peer.add_fault(**fault, calls=2) == [{**fault, "calls": 2}]
    assert (await peer.post_chunk(job, "a"))[0] == 503
    assert await peer.get(FAULTS) == {"faults": [{**fault, "calls": 1}]}
    assert (await peer.post_chunk(job, "b"))[0] == 503
    assert await peer.get(FAULTS) == {"faults": []}
    assert (await peer.post_chunk(job, "c"))[0] == 200


async def test_a_fault_for_some_seconds_runs_out(peer: Peer) -> None:
    job = await peer.start()
    (fault,) = await peer.add_fault(on="stream", do="status", seconds=600)
    assert fault["seconds"] == 600
    assert (await peer.post_chunk(job, "a"))[0] == 500
    peer.let_pass(600)
    assert await peer.get(FAULTS) == {"faults": []}
    assert (await peer.post_chunk(job, "b"))[0] == 200


async def test_a_fault_without_an_end_stays_until_it_is_cleared(peer: Peer) -> None:
    job = await peer.start()
    await peer.add_fault(on="stream", do="status")
    assert [(await peer.post_chunk(job, "a"))[0] for _ in range(5)] == [500] * 5
    assert await peer.request("DELETE", FAULTS) == (200, {"faults": []})
    assert (await peer.post_chunk(job, "b"))[0] == 200


async def test_a_fault_meets_its_own_call_only_and_only_workers(peer: Peer) -> None:
    await peer.add_fault(on="done", do="status")
    job = await peer.start()
    assert (await peer.post_chunk(job, "a"))[0] == 200
    for path in ("/ping/w", f"/status/{job}"):
        assert (await peer.request("GET", path))[0] == 200
    assert (await peer.post_done(job, output=1))[0] == 500


async def test_several_faults_of_a_call_come_one_after_the_other(peer: Peer) -> None:
    job = await peer.start()
    for status in (429, 502):
        await peer.add_fault(on="stream", do="status", status=status, calls=1)
    assert [(await peer.post_chunk(job, "a"))[0] for _ in range(3)] == [429, 502, 200]


# For a share of the calls:


async def chunk_statuses(seed: int, calls: int | None = None) -> list[int]:
    """Return the answers to 100 chunks of which a fault meets 30%."""
    async with emulator_peer(seed=seed) as peer:
        job = await peer.start()
        peer.emulator.faults.add(Fault(on=Call.STREAM, do=Action.STATUS, share=0.3, calls=calls))
        return [(await peer.post_chunk(job, "a"))[0] for _ in range(100)]


async def test_a_share_of_the_calls_follows_from_the_seed() -> None:
    first = await chunk_statuses(seed=1)
    assert set(first) == {200, 500}
    assert 15 < first.count(500) < 45
    assert await chunk_statuses(seed=1) == first
    assert await chunk_statuses(seed=2) != first


async def test_only_the_calls_that_a_fault_has_met_count() -> None:
    assert (await chunk_statuses(seed=0, calls=7)).count(500) == 7


def test_what_a_fault_meets_does_not_depend_on_other_calls() -> None:
    def drawn(faults: Faults, call: Call) -> list[bool]:
        return [faults.trigger(call, Action.RESET) is not None for _ in range(50)]

    halves = [Fault(on=call, do=Action.RESET, share=0.5) for call in (Call.TAKE, Call.STREAM)]
    takes, mixed = drawn(Faults(halves), Call.TAKE), Faults(halves)
    assert drawn(mixed, Call.STREAM) != takes
    assert drawn(mixed, Call.TAKE) == takes


RESET = {"on": "stream", "do": "reset"}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"on": "stream"}, "do: Field required"),
        ({"do": "reset"}, "on: Field required"),
        ({"on": "ping", "do": "reset"}, "on: "),
        ({"on": "stream", "do": "explode"}, "do: "),
        ({"on": "stream", "do": "status", "status": 200}, "status: "),
        ({"on": "stream", "do": "status", "status": 600}, "status: "),
        ({**RESET, "calls": 0}, "calls: "),
        ({**RESET, "seconds": 0}, "seconds: "),
        ({"on": "stream", "do": "delay", "delay_s": -1}, "delay_s: "),
        ({"on": "stream", "do": "delay"}, "a delay needs it"),
        ({**RESET, "delay_s": 1}, "delay_s goes with a delay"),
        ({**RESET, "status": 503}, "a status is what"),
        ({**RESET, "share": 0}, "share: "),
        ({**RESET, "share": 1.1}, "share: "),
        ({"on": "done", "do": "duplicate"}, "only a take can be duplicated"),
        ({**RESET, "wait": 1}, "wait: "),
        ([], "must be a JSON object"),
    ],
)
async def test_a_fault_without_sense_is_refused(peer: Peer, fault: object, message: str) -> None:
    status, answer = await peer.request("POST", FAULTS, json=fault)
    assert (status, message in answer["error"]) == (400, True)
    assert await peer.get(FAULTS) == {"faults": []}
