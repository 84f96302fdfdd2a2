"""Signed addresses: what they open, for how long, and at which workers."""

import stat
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from worker.volume import Volume
from worker.volume.links import VALID_S, Links

PATH = "/v1/llm/model-files/tuned/a b.json"


def asked(address: str) -> tuple[str, dict[str, str]]:
    """Return a path without quotes, and a query, as a server has them."""
    parts = urlsplit(address)
    return parts.path.replace("%20", " "), dict(parse_qsl(parts.query))


def test_an_address_is_right_at_every_worker_of_the_volume(tmp_path: Path) -> None:
    address = Links(Volume(tmp_path)).signed("http://host:8000/", PATH)
    assert address.startswith("http://host:8000/v1/llm/model-files/tuned/a%20b.json?expires=")
    assert Links(Volume(tmp_path)).right(*asked(address))


def test_nobody_else_on_the_machine_reads_the_secret(tmp_path: Path) -> None:
    secret = tmp_path / "worker" / "links.secret"
    for _ in ("new", "as an older worker has left it"):
        Links(Volume(tmp_path)).signed("http://host", PATH)
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        secret.chmod(0o644)


def test_an_address_of_another_volume_is_wrong(tmp_path: Path) -> None:
    address = Links(Volume(tmp_path / "a")).signed("http://host", PATH)
    assert not Links(Volume(tmp_path / "b")).right(*asked(address))


def test_without_a_volume_an_address_is_right_where_it_was_made(tmp_path: Path) -> None:
    links = Links(Volume(tmp_path / "none", optional=False))
    address = links.signed("http://host", PATH)
    assert links.right(*asked(address))
    assert not Links(Volume(tmp_path / "none", optional=False)).right(*asked(address))


@pytest.mark.parametrize(
    "change",
    [
        {"expires": "99999999999"},
        {"expires": "9" * 5_000},
        {"expires": ""},
        {"expires": "inf"},
        {"signature": ""},
        {"signature": "é"},
        {"signature": "0" * 64},
    ],
)
def test_an_address_that_was_changed_is_wrong(tmp_path: Path, change: dict[str, str]) -> None:
    links = Links(Volume(tmp_path))
    path, query = asked(links.signed("http://host", PATH))
    assert links.right(path, query)
    assert not links.right(path, {**query, **change})
    assert not links.right(path + "x", query)


def test_an_address_is_wrong_after_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links(Volume(tmp_path))
    path, query = asked(links.signed("http://host", PATH))
    expires = int(query["expires"])
    monkeypatch.setattr("worker.volume.links.time.time", lambda: expires - 1.0)
    assert links.right(path, query)
    monkeypatch.setattr("worker.volume.links.time.time", lambda: float(expires))
    assert not links.right(path, query)
    assert VALID_S == 3_600


def test_who_asks_without_a_signature_leaves_nothing_on_the_volume(tmp_path: Path) -> None:
    assert not Links(Volume(tmp_path)).right(PATH, {})
    assert list(tmp_path.iterdir()) == []
