"""Signed URLs of files."""

import stat
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from worker.volume import Volume
from worker.volume.links import VALID_S, SignedLinks

PATH = "/v1/llm/model-files/tuned/a b.json"


def sign(links: SignedLinks) -> tuple[str, dict[str, str]]:
    """Sign a URL; return its unquoted path and its query, as a server receives them."""
    url = links.sign_url("http://host:8000/", PATH)
    assert url.startswith("http://host:8000/v1/llm/model-files/tuned/a%20b.json?expires=")
    return PATH, dict(parse_qsl(urlsplit(url).query))


def test_a_signed_url_is_valid_only_at_workers_of_the_same_volume(tmp_path: Path) -> None:
    links, same, other = (SignedLinks(Volume(tmp_path / name)) for name in ("a", "a", "b"))
    assert not links.has_valid_signature(PATH, {})
    # Checking a request without a signature writes nothing to the volume.
    assert list(tmp_path.iterdir()) == []
    assert [checker.has_valid_signature(*sign(links)) for checker in (links, same, other)] == [
        True,
        True,
        False,
    ]
    # Without a volume, a URL is valid only at the worker that signed it.
    links, other = (SignedLinks(Volume(tmp_path / "none", may_create_root=False)) for _ in range(2))
    assert [checker.has_valid_signature(*sign(links)) for checker in (links, other)] == [
        True,
        False,
    ]


def test_other_users_of_the_machine_can_not_read_the_secret(tmp_path: Path) -> None:
    secret = tmp_path / "worker" / "links.secret"
    for _ in ("new", "as an older worker has left it"):
        sign(SignedLinks(Volume(tmp_path)))
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        secret.chmod(0o644)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("expires", value) for value in ("99999999999", "9" * 5_000, "", "inf")),
        *(("signature", value) for value in ("", "é", "0" * 64)),
    ],
)
def test_a_changed_url_is_invalid(tmp_path: Path, name: str, value: str) -> None:
    links = SignedLinks(Volume(tmp_path))
    path, query = sign(links)
    assert links.has_valid_signature(path, query)
    assert not links.has_valid_signature(path, {**query, name: value})
    assert not links.has_valid_signature(path + "x", query)


def test_a_signed_url_is_invalid_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, query = sign(SignedLinks(Volume(tmp_path)))
    for second, is_valid in ((-1.0, True), (0.0, False)):
        now = int(query["expires"]) + second
        monkeypatch.setattr("worker.volume.links.time.time", lambda now=now: now)
        assert SignedLinks(Volume(tmp_path)).has_valid_signature(path, query) is is_valid
    assert VALID_S == 3_600
