"""Ids that nobody can guess, that follow from a job, and that are safe as names of files."""

import re

import pytest

from worker.volume import ids


def test_every_new_id_is_another_one_of_24_letters_and_digits() -> None:
    made = {ids.new("file-") for _ in range(1000)}
    assert len(made) == 1000
    assert all(re.fullmatch(r"file-[a-z0-9]{24}", one) for one in made)
    assert all(ids.fits("file-", one) for one in made)


def test_a_derived_id_follows_from_its_origin_alone() -> None:
    derived = ids.derived("batch_", "job-1", "out")
    assert derived == ids.derived("batch_", "job-1", "out")
    assert ids.fits("batch_", derived)
    others = {ids.derived("batch_", *origin) for origin in (["job-1out"], ["job-1"], ["out"], [])}
    assert len(others | {derived}) == 5


def test_an_origin_may_be_any_text() -> None:
    assert ids.fits("batch_", ids.derived("batch_", "ä/\ud83d", ""))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "file-",
        "file-" + "a" * 23,
        "file-" + "a" * 25,
        "batch_" + "a" * 24,
        "file-" + "A" * 24,
        "file-" + "/" * 24,
        "file-../" + "a" * 21,
        "file-" + "a" * 24 + "\n",
        "file-" + "٣" * 24,
        " file-" + "a" * 24,
    ],
)
def test_a_text_of_another_form_is_no_id(text: str) -> None:
    assert not ids.fits("file-", text)
