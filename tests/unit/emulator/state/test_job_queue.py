"""The queue and its jobs, without HTTP."""

import asyncio

import pytest

from emulator.state.condition import Condition
from emulator.state.job import Job, Status
from emulator.state.job_queue import Queue


@pytest.fixture
def queue() -> Queue:
    return Queue()


def submit(queue: Queue, count: int) -> list[Job]:
    return [queue.submit({"input": {"number": number}}) for number in range(count)]


def start(queue: Queue) -> Job:
    """Queue a job and take it as worker w."""
    queue.submit({"input": {}})
    (job,) = queue.take(queue.worker("w"), 1)
    return job


def outputs(job: Job) -> list[object]:
    return [chunk.output for chunk in job.read_chunks()]


async def test_a_worker_gets_the_oldest_jobs_first_and_no_more_than_it_asked_for(
    queue: Queue,
) -> None:
    jobs = submit(queue, 3)
    assert queue.take(queue.worker("w"), 2) == jobs[:2]
    assert queue.take(queue.worker("w"), 2) == jobs[2:]
    assert queue.take(queue.worker("w"), 2) == []


async def test_jobs_given_back_go_to_the_front_in_their_order(queue: Queue) -> None:
    jobs = submit(queue, 4)
    queue.give_back(queue.take(queue.worker("dead"), 3))
    assert jobs[0].report() == {"id": jobs[0].id, "status": "IN_QUEUE"}
    assert queue.take(queue.worker("w"), 9) == jobs


async def test_a_job_cancelled_while_its_hand_over_failed_is_not_given_back(queue: Queue) -> None:
    job = start(queue)
    queue.cancel(job)
    queue.give_back([job])
    assert (job.status, queue.has_waiting) == (Status.CANCELLED, False)


async def test_a_waiting_taker_is_woken_by_a_job(queue: Queue) -> None:
    waiting = asyncio.create_task(queue.arrived.wait_for(lambda: queue.has_waiting, 60))
    await asyncio.sleep(0)
    submit(queue, 1)
    assert await waiting


async def test_of_two_waiting_takers_only_one_is_woken_for_one_job(queue: Queue) -> None:
    async def take(worker: str) -> list[Job]:
        await queue.arrived.wait_for(lambda: queue.has_waiting, 0.05)
        return queue.take(queue.worker(worker), 1)

    takers = [asyncio.create_task(take(worker)) for worker in "ab"]
    await asyncio.sleep(0)
    (job,) = submit(queue, 1)
    assert await asyncio.gather(*takers) == [[job], []]


async def test_waiting_for_a_change_that_does_not_come_ends_with_the_time() -> None:
    assert not await Condition().wait_for(lambda: False, 0.01)


async def test_reading_takes_chunks_away_and_the_record_keeps_them(queue: Queue) -> None:
    job = start(queue)
    queue.add_chunk(job, "a")
    queue.add_chunk(job, {"b": 1})
    assert outputs(job) == ["a", {"b": 1}]
    queue.add_chunk(job, "c")
    assert outputs(job) == ["c"]
    assert outputs(job) == []
    assert [chunk.output for chunk in job.chunks] == ["a", {"b": 1}, "c"]
    assert sorted(chunk.at for chunk in job.chunks) == [chunk.at for chunk in job.chunks]


async def test_following_a_job_shows_every_chunk_in_order_until_it_ends(queue: Queue) -> None:
    job = start(queue)
    queue.add_chunk(job, 1)

    async def follow() -> list[object]:
        return [chunk.output async for chunk in job.follow()]

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    queue.add_chunk(job, 2)
    await asyncio.sleep(0)
    queue.add_chunk(job, 3)
    queue.complete(job, [1, 2, 3])
    assert await following == [1, 2, 3]
    assert outputs(job) == [1, 2, 3]  # following has consumed none


async def test_a_completed_job_reports_its_output_and_times_in_milliseconds(queue: Queue) -> None:
    job = start(queue)
    queue.complete(job, ["a"])
    job.queued_at, job.started_at, job.ended_at = 1.0, 1.25, 3.0
    assert job.report() == {
        "id": job.id,
        "status": "COMPLETED",
        "workerId": "w",
        "delayTime": 250,
        "executionTime": 1750,
        "output": ["a"],
    }


async def test_a_failed_job_reports_its_error_and_no_output(queue: Queue) -> None:
    job = start(queue)
    queue.fail(job, "boom")
    report = job.report()
    assert (report["status"], report["error"]) == ("FAILED", "boom")
    assert "output" not in report


async def test_cancelling_a_queued_job_takes_it_out_of_the_queue(queue: Queue) -> None:
    first, second = submit(queue, 2)
    queue.cancel(first)
    assert first.report() == {"id": first.id, "status": "CANCELLED"}
    assert queue.take(queue.worker("w"), 9) == [second]
    assert queue.worker("w").take_stops() == []


async def test_cancelling_a_running_job_notifies_its_worker_once(queue: Queue) -> None:
    job = start(queue)
    queue.cancel(job)
    queue.cancel(job)
    assert queue.worker("w").take_stops() == [job.id]
    assert queue.worker("w").take_stops() == []


@pytest.mark.parametrize("end", ["cancel", "complete", "fail"])
async def test_what_arrives_after_the_end_changes_nothing(queue: Queue, end: str) -> None:
    job = start(queue)
    arguments = [] if end == "cancel" else ["first"]
    getattr(queue, end)(job, *arguments)
    before = job.report()
    queue.add_chunk(job, "late")
    queue.complete(job, "late")
    queue.fail(job, "late")
    queue.cancel(job)
    assert job.report() == before
    assert job.chunks == []
