"""The examples that are printed for an endpoint."""

from emulator import Emulator, Options
from emulator.examples import examples, fetch_model_name


async def test_a_worker_that_does_not_tell_its_model_is_not_left_with_the_question() -> None:
    queue = Emulator().queue
    assert await fetch_model_name(queue, wait_s=0.01) is None
    (job,) = queue.jobs.values()
    assert job.status == "CANCELLED"


def test_the_examples_in_the_raw_form_are_greedy() -> None:
    text = examples(api_url="u", endpoint="e", model=None, with_key=False, python="p")
    assert text.count('"max_tokens": 100, "temperature": 0}') == text.count("max_tokens") == 2


def test_an_address_of_version_6_stands_in_brackets() -> None:
    assert Emulator(Options(host="::1", port=9)).url == "http://[::1]:9/v2/local"
