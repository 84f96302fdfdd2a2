"""Faults on demand, as a worker sees them."""

import asyncio
from typing import Any

import pytest
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer

from emulator import Action, Call, Emulator, Fault, Options

FAULTS = "/control/faults"
LONG_S = 60.0
on_each_call = pytest.mark.parametrize("call", ["take", "stop", "stream", "done"])


async def prepare(peer: Peer, call: str) -> str:
    """Queue a job and bring it to the state in which a worker makes the call; return its id."""
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
    job = peer.queue.jobs[job_id]
    effects = {
        "take": job.status == "IN_PROGRESS",
        "stop": peer.worker.pending_stops == [],
        "stream": len(job.chunks) == 1,
        "done": job.status == "COMPLETED",
    }
    return effects[call]


@pytest.mark.parametrize("action", ["status", "reset", "lose"])
@on_each_call
async def test_a_failed_call_has_an_effect_only_if_just_its_response_was_lost(
    peer: Peer, call: str, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = await prepare(peer, call)
    await peer.add_fault(on=call, do=action)
    if action == "status":
        method, path, body = request(call, job)
        answer = await peer.request(method, path, json=body)
        assert answer == (500, {"error": "a fault on demand"})
    else:
        with pytest.raises(ConnectionResetError):
            await peer.request_raw(*request(call, job))
    assert took_effect(peer, call, job) is (action == "lose")
    assert caplog.records == []


@pytest.mark.parametrize("ends_by", ["its time", "being cleared"])
async def test_a_hanging_call_is_reset_when_its_fault_ends(peer: Peer, ends_by: str) -> None:
    job = await peer.start()
    await peer.add_fault(on="done", do="hang", calls=1, seconds=LONG_S)
    calling = asyncio.create_task(peer.request_raw(*request("done", job)))
    await poll_until(lambda: not peer.emulator.faults.list_active())
    await peer.get("/health")
    assert not calling.done()
    if ends_by == "its time":
        peer.advance_clock(LONG_S)
    else:
        await peer.request("DELETE", FAULTS)
    with pytest.raises(ConnectionResetError):
        await calling
    assert not took_effect(peer, "done", job)


@on_each_call
async def test_a_delayed_call_takes_effect_immediately(peer: Peer, call: str) -> None:
    job = await prepare(peer, call)
    await peer.add_fault(on=call, do="delay", delay_s=LONG_S)
    method, path, body = request(call, job)
    calling = asyncio.create_task(peer.request(method, path, json=body))
    await poll_until(lambda: took_effect(peer, call, job))
    await peer.get("/health")
    assert not calling.done()
    peer.advance_clock(LONG_S)
    answers = {"take": {"id": job, "input": None}, "stop": {"jobsToStop": [job]}}
    assert await calling == (200, answers.get(call, {}))


@pytest.mark.parametrize("call", ["take", "stop"])
async def test_jobs_and_stops_that_a_worker_missed_are_delivered_again(
    peer: Peer, call: str
) -> None:
    job = await prepare(peer, call)
    await peer.add_fault(on=call, do="delay", delay_s=LONG_S)
    calling = asyncio.create_task(peer.request_raw(*request(call, job)))
    await poll_until(lambda: took_effect(peer, call, job))
    calling.cancel()
    await poll_until(lambda: not took_effect(peer, call, job))
    await peer.request("DELETE", FAULTS)
    assert await (peer.take() if call == "take" else peer.jobs_to_stop()) in (job, [job])


@pytest.mark.parametrize("path", ["/job-take/w", "/job-take-batch/w?batch_size=4"])
async def test_a_duplicated_take_delivers_the_same_jobs_once_more(peer: Peer, path: str) -> None:
    for _ in range(2):
        await peer.run()
    await peer.add_fault(on="take", do="duplicate", calls=1)
    first, second, third = [await peer.get(path) for _ in range(3)]
    assert first == second != third
    jobs = first if isinstance(first, list) else [first]
    assert {await peer.status(job["id"]) for job in jobs} == {"IN_PROGRESS"}


async def test_faults_affect_only_their_call_and_one_after_the_other_until_they_end(
    peer: Peer,
) -> None:
    job = await peer.start()
    endless = {"on": "stream", "do": "status"}
    counted = {**endless, "status": 503}
    assert await peer.add_fault(**counted, calls=2) == [{**counted, "calls": 2}]
    await peer.add_fault(**endless)
    assert (await peer.post_chunk(job, "a"))[0] == 503
    assert await peer.get(FAULTS) == {"faults": [{**counted, "calls": 1}, endless]}
    assert [(await peer.post_chunk(job, "a"))[0] for _ in range(4)] == [503, *[500] * 3]
    for path in ("/ping/w", f"/status/{job}"):
        assert (await peer.request("GET", path))[0] == 200
    assert await peer.post_done(job, output=1) == (200, {})
    assert await peer.request("DELETE", FAULTS) == (200, {"faults": []})
    assert (await peer.post_chunk(job, "b"))[0] == 200


async def test_a_fault_for_some_seconds_runs_out(peer: Peer) -> None:
    job = await peer.start()
    (fault,) = await peer.add_fault(on="stream", do="status", seconds=600)
    assert fault["seconds"] == 600
    assert (await peer.post_chunk(job, "a"))[0] == 500
    peer.advance_clock(600)
    assert await peer.get(FAULTS) == {"faults": []}
    assert (await peer.post_chunk(job, "b"))[0] == 200


def draw_faults(emulator: Emulator, call: Call) -> list[bool]:
    """Return for each of 100 calls whether the fault affects it."""
    return [emulator.faults.trigger_first(call, Action.RESET) is not None for _ in range(100)]


def test_the_share_of_affected_calls_depends_on_the_seed_and_not_on_other_calls() -> None:
    faults = tuple(Fault(on=call, do=Action.RESET, share=0.3) for call in (Call.TAKE, Call.STREAM))
    one, same, another = (Emulator(Options(faults=faults, seed=seed)) for seed in (1, 1, 2))
    takes = draw_faults(one, Call.TAKE)
    assert 15 < takes.count(True) < 45
    assert draw_faults(same, Call.STREAM) != takes
    assert draw_faults(same, Call.TAKE) == takes
    assert draw_faults(another, Call.TAKE) != takes


def test_only_affected_calls_count_towards_the_limit_of_a_fault() -> None:
    fault = Fault(on=Call.TAKE, do=Action.RESET, share=0.3, calls=7)
    assert draw_faults(Emulator(Options(faults=(fault,))), Call.TAKE).count(True) == 7


RESET = {"on": "stream", "do": "reset"}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"on": "ping", "do": "reset"}, "on: "),
        ({"on": "stream", "do": "status", "status": 200}, "status: "),
        ({**RESET, "calls": 0}, "calls: "),
        ({**RESET, "seconds": 0}, "seconds: "),
        ({"on": "stream", "do": "delay"}, "a delay needs it"),
        ({**RESET, "delay_s": 1}, "delay_s goes with a delay"),
        ({**RESET, "status": 503}, "a status is what"),
        ({**RESET, "share": 1.1}, "share: "),
        ({"on": "done", "do": "duplicate"}, "only a take can be duplicated"),
        ({**RESET, "wait": 1}, "wait: "),
        ([], "must be a JSON object"),
    ],
)
async def test_an_invalid_fault_is_refused(peer: Peer, fault: object, message: str) -> None:
    status, answer = await peer.request("POST", FAULTS, json=fault)
    assert (status, message in answer["error"]) == (400, True)
    assert await peer.get(FAULTS) == {"faults": []}
