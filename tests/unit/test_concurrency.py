"""How many jobs a worker takes, and how many may be inside it."""

import pytest

from worker.concurrency import jobs_at_once, most_inside


@pytest.mark.parametrize(("slots", "jobs"), [(1, 2), (8, 16), (32, 64), (128, 160), (256, 288)])
def test_auto_is_what_the_engine_computes_and_a_few_that_wait(slots: int, jobs: int) -> None:
    assert jobs_at_once("auto", slots) == jobs


@pytest.mark.parametrize("wanted", [1, 300])
def test_a_number_is_taken_as_it_is(wanted: int) -> None:
    assert jobs_at_once(wanted, slots=128) == wanted


@pytest.mark.parametrize(("jobs", "inside"), [(1, 160), (160, 160), (300, 300)])
def test_other_ways_than_the_queue_can_fill_the_engine_too(jobs: int, inside: int) -> None:
    assert most_inside(jobs, slots=128) == inside
