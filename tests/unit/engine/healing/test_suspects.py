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
def test_one_is_the_killer_and_several_are_suspects(
    crashes: list[str], killer: str, suspects: str
) -> None:
    found = Suspects()
    for newcomers, _, others in (crash.partition("/") for crash in crashes):
        found.crashed(newcomers, others)
    assert "".join(filter(found.is_killer, "abcd")) == killer
    assert "".join(filter(found.is_suspect, "abcd")) == suspects
