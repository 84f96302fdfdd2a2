"""Which requests may have killed a core."""

import pytest

from worker.engine.healing.suspects import Suspects, belongs


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
def test_vllms_ids_hold_the_callers(id_: str, request_id: str, belong: bool) -> None:
    assert belongs(id_, request_id) is belong


def test_the_only_newcomer_of_a_crash_is_its_killer() -> None:
    suspects = Suspects()
    suspects.crashed(["chatcmpl-new"], ["chatcmpl-old"])
    assert suspects.is_killer("new")
    assert not suspects.is_killer("old")
    assert not suspects.is_suspect("old")


def test_of_several_newcomers_none_is_the_killer_but_each_is_a_suspect() -> None:
    suspects = Suspects()
    suspects.crashed(["a", "b"], ["c"])
    assert [suspects.is_killer(id_) for id_ in "abc"] == [False, False, False]
    assert [suspects.is_suspect(id_) for id_ in "abc"] == [True, True, False]


def test_the_newcomer_that_was_one_before_is_the_killer() -> None:
    suspects = Suspects()
    suspects.crashed(["a", "b"], [])
    suspects.crashed(["b", "c", "d"], [])
    assert [suspects.is_killer(id_) for id_ in "abcd"] == [False, True, False, False]


def test_a_crash_without_newcomers_has_no_killer_and_forgets_the_one_before() -> None:
    suspects = Suspects()
    suspects.crashed(["a"], [])
    suspects.crashed([], ["b"])
    assert not suspects.is_killer("a")
    assert not suspects.is_suspect("a")


def test_the_only_request_of_two_crashes_in_a_row_is_their_killer() -> None:
    suspects = Suspects()
    suspects.crashed([], ["a", "b"])
    assert [suspects.is_suspect(id_) for id_ in "abc"] == [False, False, False]
    suspects.crashed([], ["b", "c"])
    assert [suspects.is_killer(id_) for id_ in "abc"] == [False, True, False]


def test_several_requests_of_two_crashes_in_a_row_are_suspects() -> None:
    suspects = Suspects()
    suspects.crashed(["a", "b"], ["c"])
    suspects.crashed([], ["a", "b", "d"])
    assert [suspects.is_killer(id_) for id_ in "abcd"] == [False] * 4
    assert [suspects.is_suspect(id_) for id_ in "abcd"] == [True, True, False, False]


def test_choices_of_one_request_count_once() -> None:
    suspects = Suspects()
    suspects.crashed(["a", "a"], [])
    assert suspects.is_killer("a")
