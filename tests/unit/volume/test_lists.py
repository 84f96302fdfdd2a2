"""Ids, the pages of lists, and signed addresses."""

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from worker.errors import NoSuchObject
from worker.volume import Volume, ids
from worker.volume.links import VALID_S, Links
from worker.volume.pages import page


def test_every_new_id_is_another_one_of_24_letters_and_digits() -> None:
    made = {ids.new("file-") for _ in range(1000)}
    assert len(made) == 1000
    assert all(re.fullmatch(r"file-[a-z0-9]{24}", one) and ids.fits("file-", one) for one in made)


def test_a_derived_id_follows_from_its_origin_alone_which_may_be_any_text() -> None:
    derived = ids.derived("batch_", "job-1", "out")
    assert derived == ids.derived("batch_", "job-1", "out")
    others: list[list[str]] = [["job-1out"], ["job-1"], ["out"], [], ["ä/\ud83d", ""]]
    made = {derived, *(ids.derived("batch_", *origin) for origin in others)}
    assert len(made) == 6
    assert all(ids.fits("batch_", one) for one in made)


A = "a" * 24


@pytest.mark.parametrize(
    "text",
    [
        *("", "file-", f"file-{A[1:]}", f"file-{A}a", f"batch_{A}", f"file-{A.upper()}"),
        *("file-" + "/" * 24, f"file-../{A[3:]}", f"file-{A}\n", "file-" + "٣" * 24, f" file-{A}"),
    ],
)
def test_a_text_of_another_form_is_no_id(text: str) -> None:
    assert not ids.fits("file-", text)


@dataclass(frozen=True)
class Made:
    """An object of a list."""

    id: str
    created_at: int


# Two are of the same second.
ALL = [Made("b", 2), Made("d", 3), Made("a", 1), Made("c", 2)]


@pytest.mark.parametrize(("order", "sorted_ids"), [("desc", "dcba"), ("asc", "abcd")])
@pytest.mark.parametrize("limit", [1, 3, 4, 5])
def test_pages_have_every_object_once_in_order(order: str, sorted_ids: str, limit: int) -> None:
    seen: list[str] = []
    after, more = None, True
    while more:
        found = page(ALL, after=after, limit=limit, order=order)
        assert len(found.data) <= limit
        seen += [one.id for one in found.data]
        after, more = seen[-1], found.has_more
    assert "".join(seen) == sorted_ids


def test_a_page_after_nothing_in_the_list_is_refused() -> None:
    with pytest.raises(NoSuchObject, match="after: nothing") as refused:
        page(ALL, after="z")
    assert refused.value.param == "after"


PATH = "/v1/llm/model-files/tuned/a b.json"


def signed(links: Links) -> tuple[str, dict[str, str]]:
    """Return the path of an address without quotes, and its query, as a server has them."""
    address = links.signed("http://host:8000/", PATH)
    assert address.startswith("http://host:8000/v1/llm/model-files/tuned/a%20b.json?expires=")
    return PATH, dict(parse_qsl(urlsplit(address).query))


def test_an_address_is_right_at_every_worker_of_the_volume_and_no_other(tmp_path: Path) -> None:
    links, same, other = (Links(Volume(tmp_path / name)) for name in ("a", "a", "b"))
    assert not links.right(PATH, {})
    # Who asks without a signature leaves nothing on the volume.
    assert list(tmp_path.iterdir()) == []
    assert [one.right(*signed(links)) for one in (links, same, other)] == [True, True, False]
    # Without a volume, it is right where it was made.
    links, other = (Links(Volume(tmp_path / "none", optional=False)) for _ in range(2))
    assert [one.right(*signed(links)) for one in (links, other)] == [True, False]


def test_nobody_else_on_the_machine_reads_the_secret(tmp_path: Path) -> None:
    secret = tmp_path / "worker" / "links.secret"
    for _ in ("new", "as an older worker has left it"):
        signed(Links(Volume(tmp_path)))
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        secret.chmod(0o644)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("expires", value) for value in ("99999999999", "9" * 5_000, "", "inf")),
        *(("signature", value) for value in ("", "é", "0" * 64)),
    ],
)
def test_an_address_that_was_changed_is_wrong(tmp_path: Path, name: str, value: str) -> None:
    links = Links(Volume(tmp_path))
    path, query = signed(links)
    assert links.right(path, query)
    assert not links.right(path, {**query, name: value})
    assert not links.right(path + "x", query)


def test_an_address_is_wrong_after_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, query = signed(Links(Volume(tmp_path)))
    for second, right in ((-1.0, True), (0.0, False)):
        now = int(query["expires"]) + second
        monkeypatch.setattr("worker.volume.links.time.time", lambda now=now: now)
        assert Links(Volume(tmp_path)).right(path, query) is right
    assert VALID_S == 3_600
